"""A pause: what it stops, what goes on, and how a person sets and sees it."""

from __future__ import annotations

import html
import io
import json
import re
import time
import uuid

import pytest
from django.core.management import CommandError, call_command

from notifications.wake import waker
from operations.metrics import numbers
from runtime.audit import Actor
from tests.kit.acts import acts
from tests.kit.brokers import Hand, Memory, consume, write
from tests.kit.events import PAID, envelope, order, received, status
from tests.kit.mails import make_mail, make_mails, statuses
from tests.kit.people import staff_client
from tests.kit.waiting import until
from tests.kit.words import (
    EmailNotification,
    Outcome,
    Pause,
    Relay,
    Verdict,
    claim,
    claim_untried,
    next_due_in,
    pauses,
    recover,
    settle,
)

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct"])

RESTORED = "2026-11-21T20:15:00Z"


@pytest.fixture(autouse=True)
def _at_once(fast):
    fast.pauses()


def manage(*arguments: str) -> str:
    output = io.StringIO()
    call_command(*arguments, stdout=output)
    return output.getvalue()


def test_no_row_is_claimed_or_taken_back_and_none_waits_while_delivery_is_paused():
    make_mails(3)
    mail = make_mail(status="processing")
    manage("pause", "delivery", "--reason", "the provider asked us to")
    assert claim(limit=10) == claim_untried() == recover(lease_seconds=-60) == []
    assert claim(limit=1, fresh=1) == []  # none of the longest due is wanted, so none of them is missing
    assert next_due_in() is None
    assert statuses() == {"pending": 3, "processing": 1}
    manage("resume", "--all")
    assert len(recover(lease_seconds=-60)) == 1
    assert next_due_in() is not None
    assert len(claim_untried()) == 1 and len(claim(limit=10)) == 2
    assert EmailNotification.objects.get(id=mail.id).status == "failed"


def test_what_is_in_flight_is_settled_while_delivery_is_paused():
    make_mail()
    (row,) = claim(limit=1)
    manage("pause", "--all")
    settle([(row, Outcome(Verdict.ACCEPTED, "ses"))])
    assert statuses() == {"sent": 1}


def test_the_relay_publishes_nothing_while_it_is_paused_and_then_everything_in_order():
    broker, aggregate = Memory(), uuid.uuid4()
    relay = Relay(using="default", transport=broker)
    try:
        write(aggregate, "a")
        assert relay.step() == 1
        manage("pause", "relay")
        write(uuid.uuid4(), "b", "c")
        assert [relay.step() for _ in range(3)] == [0, 0, 0]
        manage("resume", "relay")
        assert relay.step() == 2
        assert broker.texts() == ["a", "b", "c"]
    finally:
        relay.close()


def test_a_consumer_leaves_the_broker_while_it_is_paused_and_comes_back():
    it = order()
    hand = Hand([received(PAID, envelope(PAID, {"orderId": str(it.id)}), key="k")])
    loop = consume(hand)
    manage("pause", "consumers")
    loop.step(seconds=0.01)
    assert hand.acknowledged == [] and status(it) != "paid"
    manage("resume", "consumers")
    loop.step(seconds=0.01)
    assert len(hand.acknowledged) == 1 and status(it) == "paid"


def test_a_second_pause_keeps_the_first_ones_reason_and_an_unknown_part_is_refused():
    assert manage("pause", "relay", "--reason", "one") == "relay: paused\n"
    assert "relay: was paused already" in manage("pause", "--all", "--reason", "two")
    assert dict(Pause.objects.values_list("part", "reason")) == {
        "relay": "one",
        "delivery": "two",
        "consumers": "two",
    }
    with pytest.raises(CommandError, match="no such part: mail"):
        manage("resume", "mail")


@pytest.mark.parametrize("arguments", [[], ["relay", "--all"]])
@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_command_that_names_neither_parts_nor_all_or_both_changes_nothing(command, arguments):
    manage("pause", "relay", "--reason", "one")
    for more in (
        ([], ["--reason", "two"], ["--restored-to", RESTORED]) if command == "pause" else ([], ["--force"])
    ):
        with pytest.raises(CommandError, match=r"delivery, relay, consumers.*--all"):
            manage(command, *arguments, *more)
    assert list(Pause.objects.values_list("part", "reason", "restored_to")) == [("relay", "one", None)]


def test_a_restored_database_is_not_resumed_before_the_logs_were_read():
    manage("pause", "relay", "--reason", "came with the backup")
    manage("pause", "--all", "--restored-to", RESTORED)
    assert Pause.objects.filter(restored_to=RESTORED).count() == 3
    assert "was paused already" in manage("pause", "--all", "--restored-to", RESTORED)
    with pytest.raises(CommandError, match="after_restore has not run"):
        manage("resume", "--all")
    pauses.reconcile()
    assert "relay: resumed" in manage("resume", "--all")
    manage("pause", "--all", "--restored-to", RESTORED)
    assert "delivery: resumed" in manage("resume", "--all", "--force")


def test_a_pause_is_seen_by_everybody_and_set_by_those_who_may(valkey_url):
    viewer = staff_client("view_pause", name="viewer")
    page = "/admin/runtime/pause/"
    assert b"Paused</h2>" not in viewer.get("/admin/").content
    assert b'name="to"' not in viewer.get(page).content
    assert viewer.post(page, {"part": "relay", "to": "pause"}).status_code == 403
    operator = staff_client("set_pause", name="operator")
    pause = {"part": ["relay", "delivery"], "to": "pause", "reason": "a bad night"}
    operator.post(page, pause | {"confirmed": "yes"})
    for client in (viewer, staff_client(name="nobody")):
        shown = client.get("/admin/").content.decode()
        assert "<b>Delivery</b> was paused" in shown and "by operator: a bad night" in shown
    operator.post(page, {"part": "delivery", "to": "resume"})
    assert list(Pause.objects.values_list("part", flat=True)) == ["relay"]
    lines = acts().values_list("subject_id", "act", "reason", "who")
    assert sorted(lines) == [
        ("delivery", "Paused.", "a bad night", "operator"),
        ("delivery", "Resumed.", "", "operator"),
        ("relay", "Paused.", "a bad night", "operator"),
    ]
    pauses.pause(parts=["delivery"], reason="", by=Actor("x"), restored_to=Pause.objects.get().paused_at)
    answer = operator.post(page, {"part": "delivery", "to": "resume"}, follow=True)
    assert "after_restore has not run" in answer.content.decode()
    assert Pause.objects.filter(part="delivery").exists()


@pytest.mark.parametrize(
    ("posted", "said"),
    [
        ({"to": "pause", "reason": "x"}, "Choose at least one part."),
        ({"to": "resume"}, "Choose at least one part."),
        ({"to": "pause", "part": "relay", "reason": " "}, "Say why."),
    ],
)
def test_the_page_changes_nothing_without_a_part_and_a_reason(posted, said):
    operator = staff_client("set_pause", name="operator")
    answer = operator.post("/admin/runtime/pause/", posted | {"confirmed": "yes"}, follow=True)
    assert f"Nothing was changed. {said}" in answer.content.decode()
    assert not Pause.objects.exists()


def test_the_page_asks_first_and_says_what_stops_and_who_pays():
    operator, page = staff_client("set_pause", name="operator"), "/admin/runtime/pause/"
    assert b"checked" not in operator.get(page).content
    posted = {"to": "pause", "part": ["delivery", "consumers"], "reason": "a bad <night>"}
    asked = operator.post(page, posted).content.decode()
    for part in Pause.Part:
        assert (pauses.COSTS[part] in asked) is (part != Pause.Part.RELAY)
    assert "a bad &lt;night&gt;" in asked and not Pause.objects.exists()
    form = re.findall(r'name="(\w+)" value="([^"]*)"', asked.partition("confirm-lines")[2])
    values: dict[str, list[str]] = {}
    for name, value in form:
        values.setdefault(name, []).append(html.unescape(value))
    operator.post(page, values)
    assert dict(Pause.objects.values_list("part", "reason")) == dict.fromkeys(
        ["delivery", "consumers"], "a bad <night>"
    )


@pytest.mark.parametrize("way", ["command", "admin"])
def test_the_end_of_a_pause_of_delivery_wakes_a_worker_before_the_command_exits(way, monkeypatch):
    woken: list[str] = []
    # As slow as a broker can be.
    monkeypatch.setattr(waker, "_call", lambda: (time.sleep(0.1), woken.append(waker.reason)))
    manage("pause", "--all", "--reason", "a bad night")
    manage("resume", "relay")
    assert woken == []
    if way == "command":
        manage("resume", "--all")
        assert woken == ["resend"]
    else:
        staff_client("set_pause").post("/admin/runtime/pause/", {"part": "delivery", "to": "resume"})
        until(lambda: woken == ["resend"])


def test_status_and_metrics_show_a_pause(valkey_url, settings):
    settings.REDIS_URL = valkey_url
    manage("pause", "relay", "--reason", "a bad night")
    shown = json.loads(manage("status", "--json"))
    (pause,) = shown["paused"]
    assert (pause["part"], pause["reason"]) == ("relay", "a bad night") and pause["seconds"] >= 0
    assert shown["needs"][0].startswith("relay is paused by")
    family = next(gauge for gauge in numbers() if gauge.name == "orderpost_paused")
    values = {sample.labels["part"]: sample.value for sample in family.samples}
    assert values == {"delivery": 0.0, "relay": 1.0, "consumers": 0.0}
