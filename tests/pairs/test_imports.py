"""An import of an order's past (`notify: false`), and other events of the same order."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.kit.events import SHOP, give, minutes_ago, new_id, story, told
from tests.kit.months import Steps
from tests.kit.words import ERASED_ADDRESS, EmailNotification, InboundDeadLetter, Order, erase_person

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])


@pytest.fixture(autouse=True)
def _sources(settings: Any) -> None:
    settings.ORDER_SOURCES = [SHOP]


def imported(change: str, id: str, sequence: int, **data: Any) -> dict[str, Any]:
    event = told(change, id, sequence, notify=False, placedAt=minutes_ago(90), **data)
    return event | {"timestamp": minutes_ago(1)}


def mails(id: str) -> list[str]:
    """Return each e-mail of the order as its event and version."""
    keys = EmailNotification.objects.filter(order_id=id).values_list("idempotency_key", flat=True)
    return sorted(key.removeprefix(f"{id}:") for key in keys)


def state(id: str) -> dict[str, Any]:
    """Return what the order shows, but not when a row was written."""
    row: dict[str, Any] = dict(Order.objects.filter(id=id).values().get())
    return {
        name: row[name] for name in row if name not in ("id", "updated_at", "correlation_id", "traceparent")
    }


@pytest.mark.parametrize("place", [0, 3, 6])
@pytest.mark.parametrize("sequence", [3, 6])
def test_wherever_an_import_arrives_the_live_events_send_what_they_send_without_it(place, sequence):
    """The import may repeat a change, or tell it in the middle of the others."""
    plain, other = new_id(), new_id()
    for event in story(plain):
        give({**event, "data": {**event["data"], "placedAt": minutes_ago(90)}})
    events = [{**event, "data": {**event["data"], "placedAt": minutes_ago(90)}} for event in story(other)]
    history = {**events[sequence - 1], "eventId": new_id(), "timestamp": minutes_ago(1)}
    history["data"] = {**history["data"], "notify": False}
    for event in [*events[:place], history, *events[place:]]:
        assert give(event) == "done"
    assert mails(other) == mails(plain) != []
    assert state(other) == state(plain)


def test_an_import_and_live_events_in_every_order_of_arrival_send_the_same():
    expected: list[str] | None = None
    for arrival in itertools.permutations(range(3)):
        id = new_id()
        events = [told("paid", id, 2), imported("completed", id, 3), told("completed", id, 3)]
        assert [give(events[index]) for index in arrival] == ["done"] * 3
        expected = expected or mails(id)
        assert mails(id) == expected == ["order.completed:3", "order.paid:2"], arrival
        assert Order.objects.get(id=id).status == "completed"


def test_an_event_whose_email_an_import_left_out_sends_it_once_however_often_it_comes():
    id = new_id()
    assert give(imported("paid", id, 2)) == "done" and mails(id) == []
    for _ in range(2):  # with two event ids, as a connector that was started again
        assert give(told("paid", id, 2)) == "done"
    assert give(imported("paid", id, 2)) == "done"
    assert mails(id) == ["order.paid:2"]
    assert not InboundDeadLetter.objects.exists()


def test_an_import_after_an_erasure_brings_no_address_back(archive_folder):
    id = new_id()
    give(told("completed", id, 3))
    erase_person(email="ann@example.com", report=Steps(), force=True)
    assert give(imported("refunded", id, 4, refundedAmount=1000, amount=1000)) == "done"
    order = Order.objects.get(id=id)
    assert (order.email, order.name, order.status) == (ERASED_ADDRESS, "", "refunded")
    assert not EmailNotification.objects.filter(recipient_email__contains="ann").exists()
