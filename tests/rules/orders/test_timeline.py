"""One order's story: the API, the command, and what they read."""

from __future__ import annotations

import datetime as dt
import json

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from notifications.log import act_on_email
from runtime.audit import Actor
from runtime.models import AuditRow
from tests.kit.acts import record_now
from tests.kit.api import Api, assert_problem, make_token
from tests.kit.months import dsn
from tests.kit.orders import (
    cancel_order,
    complete_order,
    correct_shipment,
    deliver_shipment,
    make_order,
    pay_order,
    return_shipment,
    ship_order,
)
from tests.kit.words import (
    DomainEvent,
    EmailNotification,
    Order,
    Outcome,
    Verdict,
    claim,
    manual_actions,
    new_id,
    read_timeline,
    send_copy,
    settle,
    transitions,
)

pytestmark = pytest.mark.django_db(transaction=True)


def send(mail: EmailNotification, outcome: Outcome) -> None:
    (claimed,) = claim(limit=1)
    assert claimed.id == mail.id
    settle([(claimed, outcome)])


@pytest.fixture
def story(db) -> Order:
    """Return an order that was paid. Its e-mail failed once, was resent by Rita, sent, and bounced."""
    order = make_order(total_amount=4990, currency="EUR")
    pay_order(order_id=order.id)
    mail = EmailNotification.objects.get(order_id=order.id)
    send(mail, Outcome(Verdict.PERMANENT, provider="sendgrid", code="400", text="no such user"))
    manual_actions.change(ids=[mail.id], act=transitions.RESEND)
    said, kind = "Resent (was dead_lettered).", AuditRow.Kind.RESEND
    record_now(act_on_email(mail, kind=kind, act=said, reason="she called"), by=Actor("rita"))
    send(mail, Outcome(Verdict.ACCEPTED, provider="sendgrid", provider_message_id="m-1"))
    EmailNotification.objects.filter(id=mail.id).update(bounced_at=dt.datetime.now(dt.UTC))
    DomainEvent.objects.filter(aggregate_id=order.id).update(published_at=dt.datetime.now(dt.UTC))
    order.refresh_from_db()
    return order


def told(order: Order) -> list[tuple[str, str]]:
    return [(entry.kind, entry.what) for entry in read_timeline(order=order)]


def test_it_tells_every_change_email_attempt_delivery_event_and_act_in_order(story):
    assert told(story)[:4] == [
        ("change", "order.placed"),
        ("change", "order.paid"),
        ("email", "created"),
        ("attempt", "permanent"),
    ]
    assert sorted(told(story)[4:]) == [
        ("delivery", "bounced"),
        ("delivery", "sent"),
        ("event", "published"),
        ("person", "act"),
    ]
    by_what = {entry.what: entry for entry in read_timeline(order=story)}
    assert by_what["order.placed"].text == "Order placed: €49.90"
    assert by_what["order.paid"].text == "Order paid (version 2)"
    assert by_what["permanent"].text == "order.paid: sendgrid: refused for good: 400 no such user"
    assert (by_what["act"].by, by_what["act"].text) == ("rita", "Resent (was dead_lettered). she called")
    times = [entry.at for entry in read_timeline(order=story)]
    assert times == sorted(times)


def test_a_provider_that_tells_whole_seconds_delivers_nothing_before_it_was_sent(story):
    mail = EmailNotification.objects.get(order_id=story.id)
    told_at = mail.created_at.replace(microsecond=0)  # SendGrid's: the second in which all of it happened
    EmailNotification.objects.filter(id=mail.id).update(delivered_at=told_at, bounced_at=None)
    whats = [entry.what for entry in read_timeline(order=story)]
    assert whats.index("order.placed") == 0 and whats.index("sent") < whats.index("delivered")


def test_what_is_still_to_come_is_last(story):
    complete_order(order_id=story.id)
    last = read_timeline(order=story)[-1]
    assert (last.kind, last.what, last.text) == ("plan", "next_attempt", "order.completed: next attempt")


def test_a_copy_names_the_email_that_it_is_a_copy_of(story):
    first = EmailNotification.objects.get(order_id=story.id)
    send_copy(notification_id=first.id, recipient_email="alice@example.org")
    copied = [entry.text for entry in read_timeline(order=story) if "copy" in entry.text]
    assert copied == [f"E-mail order.paid for alice@example.org saved, a copy of {first.id}"]


def test_a_resend_over_the_api_names_the_token(story):
    cancel_order(order_id=story.id)
    mail = EmailNotification.objects.get(order_id=story.id, event_type="order.cancelled")
    send(mail, Outcome(Verdict.PERMANENT, provider="sendgrid", code="400"))
    Api(make_token()).post(f"/api/v1/notifications/{mail.id}/resend")
    *_, resent = [entry for entry in read_timeline(order=story) if entry.what == "act"]
    assert resent.notification_id == mail.id and "(API token " in resent.by


def test_it_reads_detached_partitions_which_may_lack_later_columns(story):
    before = told(story)
    with connection.cursor() as cursor:
        for table, kept in (("email_notifications", "body"), ("outbox_events", "payload")):
            stamp = "209901" if table == "email_notifications" else "20990101"
            name = f"{table}_p{stamp}"
            cursor.execute(f"CREATE TABLE {name} AS SELECT * FROM {table}")
            cursor.execute(f"DELETE FROM {table}")
            assert kept
        cursor.execute("ALTER TABLE email_notifications_p209901 DROP resend_of, DROP resent_at")
    try:
        assert told(story) == before
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE email_notifications_p209901, outbox_events_p20990101")


def test_it_does_not_wait_for_a_locked_table_that_is_older_than_the_order(story):
    """Such as a month that an operator compacts, or whose drop waits for a reader."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE email_notifications_p202001 AS SELECT * FROM email_notifications LIMIT 0"
        )
    try:
        with psycopg.connect(dsn()) as operator:
            operator.execute("LOCK TABLE email_notifications_p202001 IN ACCESS EXCLUSIVE MODE")
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = '100ms'")
                assert told(story)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE email_notifications_p202001")


def test_where_the_events_are_gone_the_order_tells_its_own_times(story):
    DomainEvent.objects.all().delete()
    assert told(story)[:2] == [("change", "order.placed"), ("change", "order.paid")]


def test_the_number_of_statements_does_not_grow_with_the_story(story):
    for _ in range(20):
        send_copy(notification_id=EmailNotification.objects.filter(status="sent").latest("id").id)
        EmailNotification.objects.filter(order_id=story.id).update(
            status="sent", sent_at=dt.datetime.now(dt.UTC)
        )
    with CaptureQueriesContext(connection) as statements:
        read_timeline(order=story)
    assert len(statements) <= 8


def test_the_api_answers_it_as_a_list(story):
    page = Api(make_token(scopes=["orders:read"])).get(f"/api/v1/orders/{story.id}/timeline").json()
    assert list(page) == ["next", "previous", "results", "since"]
    assert [entry["what"] for entry in page["results"]] == [what for _, what in told(story)]
    placed = page["results"][0]
    assert list(placed) == ["at", "kind", "what", "text", "notification_id", "event_id", "provider", "by"]


def test_an_unknown_order_has_none(db):
    api = Api(make_token())
    assert_problem(api.get(f"/api/v1/orders/{new_id()}/timeline"), 404, "not-found")
    assert_problem(api.get("/api/v1/orders/x/timeline"), 404, "not-found")


class TestCommand:
    def test_it_prints_a_line_with_the_gap_for_each_entry(self, story, capsys):
        call_command("timeline", story.reference)
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == len(told(story))
        assert lines[0].endswith("Order placed: €49.90") and "+" in lines[1]
        assert any(line.endswith("she called (rita)") for line in lines)

    def test_it_prints_json(self, story, capsys):
        call_command("timeline", str(story.id), "--json")
        assert [entry["what"] for entry in json.loads(capsys.readouterr().out)] == [
            what for _, what in told(story)
        ]

    def test_an_ambiguous_reference_lists_its_orders_the_newest_first(self, story):
        newer = make_order(reference=story.reference)
        with pytest.raises(CommandError) as error:
            call_command("timeline", story.reference)
        first, *lines = str(error.value).splitlines()
        assert first.startswith("Several orders have the reference")
        assert [line.partition(" ")[0] for line in lines] == [str(newer.id), str(story.id)]
        assert lines[0].endswith("pending") and lines[1].endswith("paid")
        with pytest.raises(CommandError, match="There is no order nothing"):
            call_command("timeline", "nothing")


def test_it_tells_of_each_parcel_in_words_also_once_its_events_are_gone():
    items = [{"sku": "MUG", "name": "Mug", "quantity": 2, "unit_amount": 100}]
    order = make_order(items=items)
    pay_order(order_id=order.id)
    lines = [{"item": 0, "quantity": 2}]
    values = {"reference": "P-1", "carrier": "DHL", "tracking_number": "41", "lines": lines}
    parcel = {"order_id": order.id, "shipment_id": ship_order(order_id=order.id, **values).id}
    correct_shipment(**parcel, tracking_number="42")
    deliver_shipment(**parcel)
    return_shipment(**parcel)
    order.refresh_from_db()

    def texts() -> list[str]:
        return [entry.text for entry in read_timeline(order=order) if "Parcel" in entry.text]

    assert texts() == [
        "Parcel P-1 left with DHL 41: 2 × Mug (version 3)",
        "Parcel P-1 corrected with DHL 42: 2 × Mug (version 4)",
        "Parcel P-1 delivered: 2 × Mug (version 5)",
        "Parcel P-1 came back: 2 × Mug (version 6)",
    ]
    DomainEvent.objects.all().delete()
    assert texts() == [
        "Parcel P-1 left with DHL 42: 2 × Mug",
        "Parcel P-1 delivered: 2 × Mug",
        "Parcel P-1 came back: 2 × Mug",
    ]
