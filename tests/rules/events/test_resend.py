"""Published events can be sent again: some or a range."""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid

import pytest
import redis
from django.core.management import CommandError, call_command
from django.db.models.functions import Now

from events.publishing import resend
from runtime.database.partitions import attached
from tests.kit.orders import complete_order, pay_order, place_order
from tests.kit.people import staff_client
from tests.kit.words import (
    DomainEvent,
    MessageRefused,
)

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct"])
PLACED, PAID, COMPLETED = (f"order.order.{name}.v1" for name in ("placed", "paid", "completed"))


@pytest.fixture
def client(valkey_url, settings):
    settings.REDIS_URL = valkey_url
    with redis.Redis.from_url(valkey_url) as connected:
        yield connected


@pytest.fixture
def orders(client) -> list[uuid.UUID]:
    """Two orders with three published events each, and a third whose event is not published."""
    made = []
    for _ in range(2):
        order = place_order(user_id=uuid.uuid4(), email="a@example.com", total_amount=500)
        pay_order(order_id=order.id)
        complete_order(order_id=order.id)
        made.append(order.id)
    DomainEvent.objects.update(published_at=Now())
    place_order(user_id=uuid.uuid4(), email="a@example.com", total_amount=500)
    return made


def run(*arguments: str, capsys) -> str:
    call_command("resend_events", *arguments)
    return str(capsys.readouterr().out.strip())


def sent(client, topic: str) -> list[dict]:
    return [json.loads(fields[b"value"]) for _, fields in client.xrange(topic)]


def ids(**filters) -> list[str]:
    rows = DomainEvent.objects.published().filter(**filters).order_by("position")
    return [str(id) for id in rows.values_list("id", flat=True)]


def test_one_event_goes_to_its_topic_again_as_it_was(client, orders, capsys):
    event = DomainEvent.objects.get(aggregate_id=orders[0], event_type=PAID)
    published_at = event.published_at
    assert run("--id", str(event.id), capsys=capsys) == "Sent: 1. Refused: 0."
    (again,) = sent(client, PAID)
    assert again["eventId"] == str(event.id) and again["metadata"]["sequence"] == 2
    event.refresh_from_db()
    assert event.published_at == published_at


def test_an_orders_events_go_in_their_order(client, orders, capsys):
    assert run("--order", str(orders[1]), capsys=capsys) == "Sent: 3. Refused: 0."
    entries = [entry for topic in (PLACED, PAID, COMPLETED) for entry in client.xrange(topic)]
    assert [id for id, _ in entries] == sorted(id for id, _ in entries)
    assert {fields[b"key"].decode() for _, fields in entries} == {str(orders[1])} and len(entries) == 3


def test_a_type_and_a_time_choose_a_range_of_what_was_published(client, orders, capsys, monkeypatch):
    monkeypatch.setattr(resend, "BATCH", 2)
    assert run("--since", "2020-01-01", capsys=capsys) == "Sent: 6. Refused: 0."
    assert [event["eventId"] for event in sent(client, PAID)] == ids(event_type=PAID)
    now = dt.datetime.now(dt.UTC)
    assert run("--type", PAID, "--type", PLACED, "--since", "2020-01-01T00:00:00Z", capsys=capsys).startswith(
        "Sent: 4."
    )
    assert run("--until", (now - dt.timedelta(hours=1)).isoformat(), capsys=capsys).startswith("Sent: 0.")
    old = DomainEvent.objects.get(aggregate_id=orders[0], event_type=PLACED)
    DomainEvent.objects.filter(id=old.id).update(created_at=now - dt.timedelta(hours=2))
    assert run("--until", (now - dt.timedelta(hours=1)).isoformat(), "--dry-run", capsys=capsys).startswith(
        "1 "
    )


def test_a_range_of_time_reads_only_its_partitions():
    since = dt.datetime.now(dt.UTC)
    until = since + dt.timedelta(minutes=1)
    plan = resend.select_events(events=DomainEvent.objects.all(), since=since, until=until).explain()
    made = len(attached(model=DomainEvent))
    assert 1 <= len(set(re.findall(r"outbox_events_p\d+", plan))) <= 4 < made


def test_a_dry_run_sends_nothing(client, orders, capsys):
    assert run("--order", str(orders[0]), "--dry-run", capsys=capsys) == "3 published events."
    assert not client.exists(PLACED)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Say which events"),
        (["--since", "yesterday"], "is not a time"),
        (["--id", "5"], "invalid UUID"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused_with_a_sentence(arguments, words):
    with pytest.raises(CommandError, match=words):
        call_command("resend_events", *arguments)


def test_a_refused_event_holds_back_no_other(orders, monkeypatch, capsys):
    class Picky:
        def publish(self, messages):
            return [MessageRefused("too large") if message.topic == PLACED else None for message in messages]

        def close(self):
            pass

    monkeypatch.setattr(resend, "publisher", Picky)
    assert run("--since", "2020-01-01", capsys=capsys) == "Sent: 4. Refused: 2."
    assert not DomainEvent.objects.blocked().exists()


def test_a_broker_that_is_away_is_said_and_nothing_changes(orders, settings):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    with pytest.raises(CommandError, match="safe to run this again"):
        call_command("resend_events", "--order", str(orders[0]))


class TestAdmin:
    PAGE = "/admin/events/domainevent/"

    def press(self, admin_client, ids) -> str:
        data = {"action": "send_again", "_selected_action": [str(id) for id in ids]}
        return str(admin_client.post(self.PAGE, data, follow=True).content.decode())

    def test_selected_events_are_sent_again(self, admin_client, client, orders):
        some = list(DomainEvent.objects.values_list("id", flat=True))
        assert "Sent again: 6. Refused: 0. Left alone: 1." in self.press(admin_client, some)
        assert len(sent(client, PAID)) == 2

    def test_a_broker_that_is_away_is_said(self, admin_client, orders, settings):
        settings.REDIS_URL = "redis://127.0.0.1:1/0"
        some = list(DomainEvent.objects.values_list("id", flat=True))
        assert "does not take them now" in self.press(admin_client, some)

    def test_it_needs_the_permission_to_resolve(self, client, orders, django_user_model):

        viewer = staff_client("view_domainevent")
        self.press(viewer, list(DomainEvent.objects.values_list("id", flat=True)))
        assert not client.exists(PAID)
