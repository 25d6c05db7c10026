"""Events of other services: each has its effect once; what cannot be taken is dead with its reason."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from django.db import OperationalError

from notifications.models import EmailNotification
from orders import handlers
from orders.handlers import HANDLERS, NAME
from orders.models import Order
from orders.services import cancel_order, complete_order, pay_order, place_order
from outbox.events import inbox
from outbox.events.inbox import Inbox, replay, take
from outbox.events.transports import Consumer, Message, Received
from outbox.events.transports.redis import Consumer as Streams
from outbox.events.transports.redis import Publisher
from outbox.models import DeadEvent, OutboxEvent, ProcessedEvent

pytestmark = pytest.mark.django_db(transaction=True)
PAID, REFUNDED = "payment.payment.succeeded.v1", "payment.payment.refunded.v1"
RESERVED, INSUFFICIENT = "warehouse.stock.reserved.v1", "warehouse.stock.insufficient.v1"


def order(**fields: Any) -> Order:
    return place_order(user_id=uuid.uuid4(), email="a@example.com", total_amount=1000, **fields)


def envelope(topic: str, data: Any, **more: Any) -> dict[str, Any]:
    return {
        "eventId": str(uuid.uuid4()),
        "timestamp": "2026-11-21T10:00:00Z",
        "eventType": topic,
        "version": 1,
        "source": "payment-service",
        "data": data,
        "metadata": {"correlationId": "saga-1"},
    } | more


def received(topic: str, value: Any, key: str = "k") -> Received:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Received(topic, key, body, None)


def give(topic: str, order: Order | uuid.UUID, **data: Any) -> str:
    id = order.id if isinstance(order, Order) else order
    event = envelope(topic, {"orderId": str(id)} | data)
    return take(received=received(topic, event), consumer=NAME, handlers=HANDLERS)


def status(order: Order) -> str:
    order.refresh_from_db()
    return order.status


class TestSaga:
    def test_payment_and_stock_confirm_an_order_in_either_order(self):
        one, two = order(), order()
        assert [give(PAID, one), give(RESERVED, one)] == ["done", "done"]
        assert [give(RESERVED, two), give(PAID, two)] == ["done", "done"]
        assert status(one) == status(two) == "confirmed"

    def test_no_stock_cancels_with_the_event_and_the_mail_in_one_transaction_and_the_refund_counts(self):
        it = order()
        give(PAID, it)
        give(INSUFFICIENT, it, reason="INSUFFICIENT_STOCK")
        assert status(it) == "cancelled"
        event = OutboxEvent.objects.get(event_type="order.order.cancelled.v1")
        mail = EmailNotification.objects.get(event_type="order.cancelled")
        assert event.payload["wasPaid"] is True and "out of stock" in mail.body_text
        assert event.metadata["correlationId"] == mail.correlation_id == "saga-1"
        assert give(REFUNDED, it, amount=1000) == "done"
        it.refresh_from_db()
        assert (it.status, it.refunded_amount) == ("cancelled", 1000)

    @pytest.mark.parametrize("topic", [RESERVED, INSUFFICIENT])
    def test_what_is_so_already_is_no_change(self, topic):
        it = order()
        give(PAID, it)
        give(topic, it)
        version = Order.objects.get(id=it.id).version
        assert give(topic, it) == "done"
        assert Order.objects.get(id=it.id).version == version

    def test_a_repeat_is_counted_and_changes_nothing(self):
        it = order()
        event = envelope(PAID, {"orderId": str(it.id)})
        results = [take(received=received(PAID, event), consumer=NAME, handlers=HANDLERS) for _ in range(3)]
        assert results == ["done", "repeat", "repeat"]
        assert ProcessedEvent.objects.get().receive_count == 3
        assert Order.objects.get(id=it.id).version == 2


class TestDead:
    def assert_dead(self, result: str, reason: str) -> None:
        assert result == "dead"
        dead = DeadEvent.objects.get()
        assert reason in dead.error
        note = OutboxEvent.objects.get(event_type__endswith=".dlt")
        assert note.event_type == f"{dead.topic}.dlt"
        assert set(note.payload) == {
            "eventId",
            "originalEvent",
            "errorMessage",
            "failedAt",
            "consumerService",
        }
        assert note.payload["consumerService"] == "orders" and reason in note.payload["errorMessage"]

    def test_a_payment_for_a_cancelled_order(self):
        it = order()
        cancel_order(order_id=it.id)
        self.assert_dead(give(PAID, it), "the payment was not expected")
        assert status(it) == "cancelled"

    def test_a_second_payment(self):
        it = order()
        pay_order(order_id=it.id)
        self.assert_dead(give(PAID, it), "the payment was not expected")

    @pytest.mark.parametrize("topic", [PAID, REFUNDED, RESERVED, INSUFFICIENT])
    def test_an_unknown_order(self, topic):
        self.assert_dead(give(topic, uuid.uuid4()), "There is no order")

    def test_a_refund_of_more_than_is_left(self):
        it = order()
        pay_order(order_id=it.id)
        self.assert_dead(give(REFUNDED, it, amount=1001), "1001")
        assert status(it) == "paid"

    def test_no_stock_for_a_completed_order(self):
        it = order()
        pay_order(order_id=it.id)
        complete_order(order_id=it.id)
        self.assert_dead(give(INSUFFICIENT, it), "completed")

    @pytest.mark.parametrize("amount", ["5", 0, -1, True, 1.5])
    def test_an_amount_that_is_none(self, amount):
        it = order()
        pay_order(order_id=it.id)
        self.assert_dead(give(REFUNDED, it, amount=amount), "amount")

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            (b"", "no JSON"),
            (b"{", "no JSON"),
            (b"\xff\x00", "no JSON"),
            (b"[" * 50_000, "no JSON"),
            (b"[]", "no JSON object"),
            (b"{}", "eventId"),
            (envelope(PAID, {}, eventId="5"), "eventId"),
            (envelope(PAID, {}, eventType="other.v1"), "eventType"),
            (envelope(PAID, {}, version=2), "version"),
            (envelope(PAID, {}, version="1"), "version"),
            (envelope(PAID, {}, source=None), "source"),
            (envelope(PAID, ["x"]), "data"),
            (envelope(PAID, {}), "orderId"),
            (envelope(PAID, {"orderId": 7}), "orderId"),
            (envelope(PAID, {"orderId": str(uuid.uuid4()), "x": "y" * 1_000_001}), "bytes"),
        ],
    )
    def test_what_is_no_envelope(self, value, reason):
        message = received(PAID, value)
        self.assert_dead(take(received=message, consumer=NAME, handlers=HANDLERS), reason)
        assert take(received=message, consumer=NAME, handlers=HANDLERS) == "repeat"
        assert DeadEvent.objects.count() == 1

    def test_a_dead_one_can_be_replayed_when_its_cause_is_gone(self, valkey_url, settings):
        settings.REDIS_URL = valkey_url
        it = order()
        event = envelope(REFUNDED, {"orderId": str(it.id), "amount": 10})
        message = received(REFUNDED, event, key=str(it.id))
        assert take(received=message, consumer=NAME, handlers=HANDLERS) == "dead"
        pay_order(order_id=it.id)
        replay(dead=DeadEvent.objects.get())
        consumer = Streams(topics=[REFUNDED], group="g", name="a")
        (again,) = consumer.receive(seconds=1)
        assert (again.key, take(received=again, consumer=NAME, handlers=HANDLERS)) == (str(it.id), "done")
        assert status(it) == "part_refunded" and DeadEvent.objects.get().replayed_at


class Hand(Consumer):
    """A broker's hand in memory."""

    def __init__(self, *rounds: list[Received]) -> None:
        self.rounds = list(rounds)
        self.acknowledged: list[Received] = []

    def receive(self, *, seconds):
        return self.rounds.pop(0) if self.rounds else []

    def done(self, messages):
        self.acknowledged += messages

    def close(self):
        pass


class TestInbox:
    def test_a_temporary_error_holds_back_its_key_and_nobody_else_and_is_tried_again(self, monkeypatch):
        monkeypatch.setattr(inbox, "BACKOFF_BASE", 0.05)
        one, two = order(), order()
        fails = {"left": 2}

        def flaky(event):
            if event.data["orderId"] == str(one.id) and fails["left"]:
                fails["left"] -= 1
                raise TimeoutError("a service of ours is slow")
            handlers.payment_succeeded(event)

        first = received(PAID, envelope(PAID, {"orderId": str(one.id)}), key="one")
        behind = received(RESERVED, envelope(RESERVED, {"orderId": str(one.id)}), key="one")
        other = received(PAID, envelope(PAID, {"orderId": str(two.id)}), key="two")
        hand = Hand([first, behind, other])
        it = Inbox(consumer=hand, name=NAME, handlers=HANDLERS | {PAID: flaky})
        it.step()
        assert hand.acknowledged == [other]
        while len(hand.acknowledged) < 3:
            it.step(seconds=0.05)
        assert hand.acknowledged == [other, first, behind]
        assert status(one) == "confirmed" and status(two) == "paid"

    def test_what_goes_on_failing_is_dead_in_the_end(self, monkeypatch):
        monkeypatch.setattr(inbox, "BACKOFF_BASE", 0.001)

        def broken(event):
            raise ZeroDivisionError

        hand = Hand([received(PAID, envelope(PAID, {"orderId": str(order().id)}))])
        it = Inbox(consumer=hand, name=NAME, handlers=HANDLERS | {PAID: broken})
        while not hand.acknowledged:
            it.step(seconds=0.01)
        assert "ZeroDivisionError" in DeadEvent.objects.get().error

    def test_a_database_that_is_away_is_nobodys_fault(self):
        def away(event):
            raise OperationalError("gone")

        hand = Hand([received(PAID, envelope(PAID, {"orderId": str(order().id)}))])
        it = Inbox(consumer=hand, name=NAME, handlers=HANDLERS | {PAID: away})
        with pytest.raises(OperationalError):
            it.step()
        assert not hand.acknowledged and not DeadEvent.objects.exists()


class TestStreams:
    @pytest.fixture(autouse=True)
    def _here(self, valkey_url, settings):
        settings.REDIS_URL = valkey_url

    def test_a_group_shares_the_entries_and_what_a_dead_member_left_is_taken_over(self, monkeypatch):
        from outbox.events.transports import redis as streams

        publisher = Publisher()
        publisher.publish([Message("t.v1", str(n), b"%d" % n) for n in range(10)])
        dead = Streams(topics=["t.v1"], group="g", name="dead")
        got = dead.receive(seconds=0.1)
        assert [int(one.value) for one in got] == list(range(10))
        dead.done(got[:4])
        dead.close()
        monkeypatch.setattr(streams, "TAKE_OVER_SECONDS", 0.0)
        alive = Streams(topics=["t.v1"], group="g", name="alive")
        again = alive.receive(seconds=0.1)
        assert [int(one.value) for one in again] == [4, 5, 6, 7, 8, 9]
        alive.done(again)
        assert alive.receive(seconds=0.05) == []

    def test_a_broker_that_lost_everything_gets_its_groups_anew(self, valkey_url):
        import redis

        from outbox.events.transports import BrokerAway

        consumer = Streams(topics=["t.v1"], group="g", name="a")
        assert consumer.receive(seconds=0.01) == []
        with redis.Redis.from_url(valkey_url) as client:
            client.flushdb()
        with pytest.raises(BrokerAway):
            consumer.receive(seconds=0.01)
        Publisher().publish([Message("t.v1", "k", b"x")])
        assert len(consumer.receive(seconds=0.5)) == 1
