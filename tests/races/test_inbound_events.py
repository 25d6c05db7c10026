"""Inbound events at once, and changes between the record of an event and the lock of its order."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from orders.models import UnexpectedPayment
from runtime.process.backoff import RetryPolicy
from tests.kit.brokers import Hand, consume
from tests.kit.deaths import run_until_killed
from tests.kit.events import (
    PAID,
    REFUNDED,
    RESERVED,
    SHOP,
    envelope,
    handle,
    new_id,
    order,
    received,
    status,
    told,
)
from tests.kit.orders import cancel_order, confirm_order
from tests.kit.races import together
from tests.kit.trips import count_trips
from tests.kit.words import (
    HANDLERS,
    DomainEvent,
    EmailNotification,
    InboundDeadLetter,
    Order,
    ProcessedEvent,
    Received,
    consumer,
    inbox,
)

pytestmark = pytest.mark.django_db(transaction=True)
BEGIN_AND_COMMIT = 2  # which Django counts as statements


@pytest.fixture(autouse=True)
def _shop(settings: Any) -> None:
    settings.ORDER_SOURCES = [SHOP]
    settings.FAST_PATH = False


@pytest.fixture
def after_the_read(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that has each of some things happen before one event of a topic takes its lock."""

    def arrange(topic: str, *events: Callable[[], object]) -> None:
        handler, pending = HANDLERS[topic], list(reversed(events))

        def handled(event: Any) -> None:
            if pending:
                happen = pending.pop()
                together(1, lambda _: happen())
            handler(event)

        monkeypatch.setitem(HANDLERS, topic, handled)

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


def test_a_repeat_of_an_event_that_changes_nothing_is_counted_once_for_each_receipt():
    it = order()
    handle(about(RESERVED, it))
    event = about(RESERVED, it)
    assert sorted(together(2, lambda _: handle(event))) == ["done", "repeat"]
    assert sorted(ProcessedEvent.objects.values_list("receive_count", flat=True)) == [1, 2]


def test_a_repeat_that_makes_an_order_at_the_same_moment_has_no_second_effect():
    id = new_id()
    event = report("paid", id, 1)
    assert sorted(together(2, lambda _: handle(event))) == ["done", "repeat"]
    assert (Order.objects.count(), mails(id)) == (1, ["order.paid:1"])


def test_an_event_whose_order_is_made_after_its_read_changes_the_made_one(after_the_read, settings):
    settings.NOTIFY_ON = ["order.placed", "order.paid"]
    id = new_id()
    after_the_read("order.order.paid.v1", lambda: handle(report("placed", id, 1)))
    assert handle(report("paid", id, 2)) == "done"
    stored = Order.objects.get()
    assert (stored.status, stored.version, mails(id)) == ("paid", 2, ["order.paid:2", "order.placed:1"])


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


def test_each_refused_payment_leaves_one_trace_however_many_sessions_have_it():
    it = order()
    cancel_order(order_id=it.id)
    events = [about(PAID, it) for _ in range(3)]
    assert sorted(together(6, lambda number: handle(events[number % 3]))) == ["dead"] * 3 + ["repeat"] * 3
    ids = {inbox.open_message(event).any_envelope.id for event in events}
    payments = UnexpectedPayment.objects.filter(order_id=it.id, returned_at=None)
    assert set(payments.values_list("id", "amount")) == {(id, 1000) for id in ids}


def test_a_payment_that_is_refused_while_its_refund_waits_is_returned_by_it(after_the_read):
    """The refund took no lock yet, so it finds the trace."""
    it = order()
    cancel_order(order_id=it.id)
    after_the_read(REFUNDED, lambda: handle(about(PAID, it)))
    assert handle(about(REFUNDED, it)) == "done"
    it.refresh_from_db()
    assert UnexpectedPayment.objects.get(order_id=it.id).returned_at and it.unexpected_payment_at is None


def test_stock_that_is_reserved_after_the_read_of_a_payment_is_not_forgotten(after_the_read):
    it = order()
    after_the_read(PAID, lambda: confirm_order(order_id=it.id))
    assert handle(about(PAID, it)) == "done"
    assert status(it) == "confirmed"


def test_one_event_in_ten_sessions_at_once_has_one_effect():
    for _ in range(5):
        it = order()
        event = about(PAID, it)
        outcomes = together(10, lambda _, event=event: handle(event))
        assert sorted(outcomes) == ["done"] + ["repeat"] * 9
        assert mails(it.id) == ["order.paid:2"]
        assert (
            ProcessedEvent.objects.get(event_id=inbox.open_message(event).any_envelope.id).receive_count == 10
        )


class TestStatements:
    """Each event is a transaction of two trips: lock, save. A repeat is undone, and counted in another."""

    REPEAT = 2 + 1 + 2 * BEGIN_AND_COMMIT

    def count(self, event: Received) -> int:
        with CaptureQueriesContext(connection) as captured:
            assert handle(event) in ("done", "repeat")
        return len(captured)

    def test_an_event_of_our_order_takes_two_in_two_trips(self):
        for _ in range(2):
            handle(about(PAID, order()))
        it = order()
        event = about(PAID, it)
        counts = []
        assert count_trips(lambda: counts.append(self.count(event))) == 2
        assert counts == [2 + BEGIN_AND_COMMIT]
        assert self.count(event) <= self.REPEAT
        assert (status(it), it.version) == ("paid", 2)

    def test_a_refund_takes_three(self):
        it = order()
        handle(about(PAID, it))
        event = about(REFUNDED, it, amount=1, refundId="re_1")
        assert self.count(event) <= 3 + BEGIN_AND_COMMIT
        assert self.count(event) <= 1 + self.REPEAT
        assert self.count(about(REFUNDED, it, refundId="re_1")) <= 3 + BEGIN_AND_COMMIT

    def test_each_event_in_the_life_of_another_systems_order_takes_two(self):
        id = new_id()
        for at, change in enumerate(("placed", "paid", "confirmed", "completed"), 1):
            assert self.count(report(change, id, at)) <= 2 + BEGIN_AND_COMMIT
        assert Order.objects.get().status == "completed"


class TestManyEvents:
    def process(self, *events: Received) -> list[str]:
        return [handle(event) for event in events]

    def test_each_event_of_one_order_is_decided_on_the_result_of_the_one_before(self):
        it = order()
        outcomes = self.process(about(RESERVED, it), about(PAID, it), about(REFUNDED, it, amount=400))
        assert outcomes == ["done"] * 3
        assert (status(it), it.version, it.refunded_amount) == ("part_refunded", 4, 400)

    def test_an_event_twice_among_them_has_one_effect(self):
        it = order()
        event = about(PAID, it)
        assert self.process(event, about(RESERVED, it), event) == ["done", "done", "repeat"]
        assert mails(it.id) == ["order.paid:2"]

    def test_an_event_behind_one_that_was_refused_is_decided_on_the_order_as_it_is(self):
        it = order()
        assert self.process(about(REFUNDED, it), about(PAID, it), about(PAID, it)) == ["dead", "done", "dead"]
        assert (status(it), it.version) == ("paid", 2)

    def test_two_consumers_with_the_same_orders_in_opposite_order_have_each_effect_once(self):
        orders = [order() for _ in range(20)]
        events = [about(PAID, it) for it in orders] + [about(RESERVED, it) for it in orders]
        hands = [Hand(list(events)), Hand(list(reversed(events)))]
        together(2, lambda number: consume(hands[number]).step())
        assert [len(hand.acknowledged) for hand in hands] == [40, 40]
        assert Order.objects.filter(status="confirmed", version=3).count() == 20
        assert ProcessedEvent.objects.count() == 40 and not InboundDeadLetter.objects.exists()

    def test_an_error_of_one_event_leaves_the_others_as_if_they_were_alone(self, monkeypatch):
        monkeypatch.setattr("runtime.process.loop.RECONNECTS", RetryPolicy(60, 60))
        orders = [order() for _ in range(98)]
        twice, poisoned = orders[10], orders[20]

        def pay(event: Any) -> None:
            HANDLERS[PAID](event)  # the order is paid now, in this transaction
            if event.data["orderId"] == str(poisoned.id):
                raise ZeroDivisionError

        events = [about(PAID, it) for it in orders]
        hand = Hand([*events, about(RESERVED, twice), about(RESERVED, poisoned)])
        consume(hand, **{PAID: pay}).step()
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
        *(about(PAID, order) for order in own),
        *(report("placed", id, 1) for id in ids[:24]),
        about(PAID, str(uuid.uuid4())),  # poisoned
        *(report("paid", id, 2) for id in ids[:24]),
        *(about(RESERVED, order) for order in own[:3]),
    ]
    assert len(events) == 100
    process_one = consumer.process
    left = {"commits": commits}

    def process(message: Any, **more: Any) -> Any:
        if not left["commits"]:
            raise Killed
        left["commits"] -= 1
        return process_one(message, **more)

    monkeypatch.setattr(consumer, "process", process)
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
    for placed in own:
        assert status(placed) == ("confirmed" if placed in own[:3] else "paid")
        assert mails(placed.id) == ["order.paid:2", "order.placed:1"]
    for id in ids[:24]:
        assert mails(id) == ["order.paid:2", "order.placed:1"]
        assert not DomainEvent.objects.filter(aggregate_id=id).exists()


DYING = """
import json, os, signal, sys
import django; django.setup()
from psycopg.generators import send
from runtime.database.postgres import cursor
from runtime.database.postgres.base import DatabaseWrapper
from tests.kit.events import handle, received
topic, warming, event, when = json.loads(sys.argv[1])
for each in warming:  # the statements are prepared now
    assert handle(received(topic, each)) == "done"
commit = DatabaseWrapper._commit
def die(self):
    if when == "after":
        commit(self)
    os.kill(os.getpid(), signal.SIGKILL)
def send_and_die(pgconn):
    yield from send(pgconn)
    os.kill(os.getpid(), signal.SIGKILL)
def send_at_commit_and_die(self):
    cursor._fetch_up_to_sync = send_and_die
    commit(self)
DatabaseWrapper._commit = send_at_commit_and_die if when == "sent" else die
handle(received(topic, event))
"""


@pytest.mark.parametrize("when", ["before", "sent", "after"])
def test_an_event_whose_process_is_killed_at_its_commit_has_its_effect_once(tmp_path, when):
    it = order()
    event = envelope(PAID, {"orderId": str(it.id)})
    warming = [envelope(PAID, {"orderId": str(order().id)}) for _ in range(2)]
    run_until_killed(DYING, json.dumps([PAID, warming, event, when]), tmp_path=tmp_path)
    is_committed = ProcessedEvent.objects.filter(event_id=event["eventId"]).exists()
    assert is_committed or when != "after"
    assert not is_committed or when != "before"
    assert status(it) == ("paid" if is_committed else "pending")
    assert handle(received(PAID, event)) == ("repeat" if is_committed else "done")
    assert (status(it), it.version) == ("paid", 2)
    assert DomainEvent.objects.filter(aggregate_id=it.id, sequence=2).count() == 1
    assert mails(it.id).count("order.paid:2") == 1
