"""Inbound events at once, and changes between the read of an event, or of a batch, and its statement."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from runtime.process.backoff import RetryPolicy
from tests.kit.brokers import Hand, consume
from tests.kit.events import (
    INSUFFICIENT,
    PAID,
    REFUNDED,
    RESERVED,
    SHOP,
    envelope,
    handle,
    new_id,
    order,
    received,
    refunded,
    status,
    told,
)
from tests.kit.orders import cancel_order, confirm_order, pay_order
from tests.kit.races import together
from tests.kit.words import (
    HANDLERS,
    NAME,
    DomainEvent,
    EmailNotification,
    InboundDeadLetter,
    Order,
    ProcessedEvent,
    Received,
    inbox,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _shop(settings: Any) -> None:
    settings.ORDER_SOURCES = [SHOP]
    settings.FAST_PATH = False


@pytest.fixture
def after_the_read(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that has each of some things happen after one decision about a topic."""

    def arrange(topic: str, *events: Callable[[], object]) -> None:
        handler: Any = HANDLERS[topic]
        pending = list(reversed(events))

        def decide(*read: Any) -> Any:
            change = handler.decide(*read)
            if pending:
                happen = pending.pop()
                together(1, lambda _: happen())
            return change

        monkeypatch.setitem(HANDLERS, topic, dataclasses.replace(handler, decide=decide))

    return arrange


def about(topic: str, it: Order | str, **data: Any) -> Received:
    id = str(it.id if isinstance(it, Order) else it)
    return received(topic, envelope(topic, {"orderId": id} | data), key=id)


def report(change: str, id: str, sequence: int, **data: Any) -> Received:
    event = told(change, id, sequence, **data)
    return received(event["eventType"], event, key=id)


def mails(id: Any) -> list[str]:
    keys = EmailNotification.objects.filter(order_id=id).values_list("idempotency_key", flat=True)
    return sorted(key.partition(":")[2] for key in keys)


def locks(captured: CaptureQueriesContext) -> int:
    return sum("FOR UPDATE" in query["sql"] for query in captured)


def test_a_repeat_that_commits_after_the_read_of_the_first_has_no_second_effect(after_the_read):
    it = order()
    event = about(PAID, it)
    after_the_read(PAID, lambda: handle(event))
    assert handle(event) == "repeat"
    assert ProcessedEvent.objects.get().receive_count == 2
    assert (status(it), it.version, mails(it.id)) == ("paid", 2, ["order.paid:2"])


def test_a_repeat_of_an_event_that_changes_nothing_is_counted_once_for_each_receipt(after_the_read):
    """No row of an order stops the second, so the primary key of the inbox alone does."""
    it = order()
    handle(about(RESERVED, it))
    event = about(RESERVED, it)
    after_the_read(RESERVED, lambda: handle(event))
    assert handle(event) == "repeat"
    assert sorted(ProcessedEvent.objects.values_list("receive_count", flat=True)) == [1, 2]


def test_a_repeat_that_makes_an_order_after_the_read_of_the_first_has_no_second_effect(after_the_read):
    id = new_id()
    event = report("paid", id, 1)
    after_the_read(event.topic, lambda: handle(event))
    assert handle(event) == "repeat"
    assert (Order.objects.count(), mails(id)) == (1, ["order.paid:1"])


def test_an_event_whose_order_is_made_after_its_read_changes_the_made_one(after_the_read, settings):
    settings.NOTIFY_ON = ["order.placed", "order.paid"]
    id = new_id()
    after_the_read("order.order.paid.v1", lambda: handle(report("placed", id, 1)))
    assert handle(report("paid", id, 2)) == "done"
    found = Order.objects.get()
    assert (found.status, found.version, mails(id)) == ("paid", 2, ["order.paid:2", "order.placed:1"])


def test_two_overtaken_events_of_one_version_under_two_ids_send_one_email(after_the_read, settings):
    settings.NOTIFY_ON = ["order.placed", "order.paid"]
    id = new_id()
    handle(report("paid", id, 2))
    after_the_read("order.order.placed.v1", lambda: handle(report("placed", id, 1)))
    assert handle(report("placed", id, 1)) == "done"
    assert mails(id) == ["order.paid:2", "order.placed:1"]
    assert ProcessedEvent.objects.count() == 3


def test_two_failed_payments_at_once_send_one_email(after_the_read, settings):
    settings.NOTIFY_ON = ["order.payment_failed"]
    failed = "payment.payment.failed.v1"
    it = order()
    after_the_read(failed, lambda: handle(about(failed, it)))
    assert handle(about(failed, it)) == "done"
    assert mails(it.id) == ["order.payment_failed:2"]
    assert Order.objects.get().version == 3


def test_an_event_whose_order_moved_after_its_read_is_decided_by_the_order_as_it_is(after_the_read):
    it = order()
    after_the_read(PAID, lambda: cancel_order(order_id=it.id))
    assert handle(about(PAID, it)) == "dead"
    assert status(it) == "cancelled" and mails(it.id) == ["order.cancelled:2"]


def test_an_event_whose_order_moved_after_two_reads_locks_the_order_and_wins(after_the_read):
    it = order()
    corrected = Order.objects.filter(id=it.id)
    after_the_read(
        PAID,
        lambda: corrected.update(email="first@example.com"),
        lambda: corrected.update(email="second@example.com"),
    )
    with CaptureQueriesContext(connection) as captured:
        assert handle(about(PAID, it)) == "done"
    assert locks(captured) == 1
    assert EmailNotification.objects.get().recipient_email == "second@example.com"
    assert mails(it.id) == ["order.paid:2"]


def test_stock_that_is_reserved_after_the_read_of_a_payment_is_not_forgotten(after_the_read):
    it = order()
    after_the_read(PAID, lambda: confirm_order(order_id=it.id))
    assert handle(about(PAID, it)) == "done"
    assert status(it) == "confirmed"


def test_one_event_in_ten_sessions_at_once_has_one_effect():
    for _ in range(5):
        it = order()
        event = about(PAID, it)
        found = together(10, lambda _, event=event: handle(event))
        assert sorted(found) == ["done"] + ["repeat"] * 9
        assert mails(it.id) == ["order.paid:2"]
        assert ProcessedEvent.objects.get(event_id=inbox.open_message(event).known.id).receive_count == 10


class TestBatch:
    def process(self, *events: Received) -> list[str]:
        return list(self.results(*events))

    def results(self, *events: Received) -> Iterator[str]:
        messages = [inbox.open_message(event) for event in events]
        envelopes = [message.envelope for message in messages if message.envelope]
        batch = inbox.Batch(consumer=NAME, handlers=HANDLERS, envelopes=envelopes)
        for message in messages:
            yield batch.process(message)

    def test_each_event_of_one_order_is_decided_on_the_result_of_the_one_before(self):
        it = order()
        with CaptureQueriesContext(connection) as captured:
            found = self.process(about(RESERVED, it), about(PAID, it), about(REFUNDED, it, amount=400))
        assert found == ["done"] * 3
        assert len(captured) == 4  # one that reads, and three that write
        assert (status(it), it.version, it.refunded_amount) == ("part_refunded", 4, 400)

    def test_the_whole_life_of_another_systems_order_is_one_read_and_a_statement_for_each_event(self):
        id = new_id()
        changes = enumerate(("placed", "paid", "confirmed", "completed"), 1)
        with CaptureQueriesContext(connection) as captured:
            found = self.process(*(report(change, id, at) for at, change in changes))
        assert found == ["done"] * 4 and len(captured) == 5
        assert Order.objects.get().status == "completed"

    def test_an_event_twice_in_it_has_one_effect(self):
        it = order()
        event = about(PAID, it)
        assert self.process(event, about(RESERVED, it), event) == ["done", "done", "repeat"]
        assert mails(it.id) == ["order.paid:2"]

    def test_a_change_of_another_session_between_two_of_its_events_counts(self):
        it = order()
        results = self.results(about(RESERVED, it), about(PAID, it), about(INSUFFICIENT, it))
        assert next(results) == "done"
        together(1, lambda _: pay_order(order_id=it.id))
        assert next(results) == "dead"  # a second payment
        assert next(results) == "done"
        assert status(it) == "cancelled"

    def test_what_the_read_would_have_refused_is_decided_again_on_the_order_as_it_is(self):
        it, other = order(), order()
        results = self.results(about(PAID, other), about(REFUNDED, it, amount=10))
        assert next(results) == "done"
        together(1, lambda _: pay_order(order_id=it.id))
        assert next(results) == "done"
        assert refunded(it) == 10 and not InboundDeadLetter.objects.exists()

    def test_a_repeat_in_another_session_since_the_read_has_no_second_effect(self):
        it, other = order(), order()
        event = about(PAID, it)
        results = self.results(about(PAID, other), event)
        assert next(results) == "done"
        together(1, lambda _: handle(event))
        assert next(results) == "repeat"
        assert mails(it.id) == ["order.paid:2"]

    def test_an_event_behind_one_that_was_refused_is_decided_on_the_order_as_it_is(self):
        it = order()
        assert self.process(about(REFUNDED, it), about(PAID, it), about(PAID, it)) == ["dead", "done", "dead"]
        assert (status(it), it.version) == ("paid", 2)

    def test_an_error_of_one_event_leaves_the_others_as_if_they_were_alone(self, monkeypatch):
        monkeypatch.setattr("runtime.process.loop.RECONNECTS", RetryPolicy(60, 60))
        orders = [order() for _ in range(98)]
        twice, poisoned = orders[10], orders[20]
        handler: Any = HANDLERS[PAID]

        def decide(event: Any, *read: Any) -> Any:
            change = handler.decide(event, *read)  # the order in memory is paid now
            if event.data["orderId"] == str(poisoned.id):
                raise ZeroDivisionError
            return change

        paid = dataclasses.replace(handler, decide=decide)
        events = [about(PAID, one) for one in orders]
        hand = Hand([*events, about(RESERVED, twice), about(RESERVED, poisoned)])
        consume(hand, **{PAID: paid}).step()
        assert len(hand.acknowledged) == 99
        assert Order.objects.filter(status="paid").count() == 96
        assert status(twice) == "confirmed" and status(poisoned) == "pending"
        assert poisoned.stock_reserved_at is not None


class Killed(BaseException):
    """The process is killed."""


@pytest.mark.parametrize("commits", [0, 1, 2, 50, 98, 99, 100])
def test_a_batch_that_is_killed_between_two_commits_has_each_effect_once(monkeypatch, settings, commits):
    settings.NOTIFY_ON = ["order.placed", "order.paid"]
    own, ids = [order() for _ in range(48)], [new_id() for _ in range(25)]
    events = [
        *(about(PAID, one) for one in own),
        *(report("placed", id, 1) for id in ids[:24]),
        about(PAID, str(uuid.uuid4())),  # poisoned
        *(report("paid", id, 2) for id in ids[:24]),
        *(about(RESERVED, one) for one in own[:3]),
    ]
    assert len(events) == 100
    processed = inbox.Batch.process
    left = {"commits": commits}

    def process(self: Any, message: Any, **more: Any) -> Any:
        if not left["commits"]:
            raise Killed
        left["commits"] -= 1
        return processed(self, message, **more)

    monkeypatch.setattr(inbox.Batch, "process", process)
    hand = Hand(events)
    if commits < len(events):
        with pytest.raises(Killed):
            consume(hand).step()
        assert ProcessedEvent.objects.count() == commits
    else:
        consume(hand).step()
    monkeypatch.undo()
    consume(again := Hand(events)).step()
    assert len(again.acknowledged) == 100
    assert ProcessedEvent.objects.count() == 100 and InboundDeadLetter.objects.count() == 1
    for one in own:
        assert status(one) == ("confirmed" if one in own[:3] else "paid")
        assert mails(one.id) == ["order.paid:2", "order.placed:1"]
    for id in ids[:24]:
        assert mails(id) == ["order.paid:2", "order.placed:1"]
        assert not DomainEvent.objects.filter(aggregate_id=id).exists()
