"""An inbound event has its effect once, and whatever cannot be processed becomes a dead letter."""

from __future__ import annotations

import datetime as dt
import json
import uuid

import psycopg
import pytest
from django.db import connections, transaction

from events.transports.base import LARGEST
from tests.kit.events import PAID, REFUNDED, dead_refund, envelope, handle, order, received, refunded, status
from tests.kit.months import dsn
from tests.kit.orders import pay_order
from tests.kit.races import together
from tests.kit.words import (
    HANDLERS,
    NAME,
    DomainEvent,
    EmailNotification,
    InboundDeadLetter,
    Order,
    inbox,
    replay_next,
)

pytestmark = pytest.mark.django_db(transaction=True)


def replay_all() -> int:
    """Replay what is requested; return how many letters that were."""
    count = 0
    while replay_next(consumer=NAME, handlers=HANDLERS) is not None:
        count += 1
    return count


class TestStrangeBytes:
    def body(self, **more) -> bytes:
        return json.dumps(envelope(PAID, {"orderId": str(order().id)}) | more).encode()

    @pytest.mark.parametrize(
        ("more", "reason"),
        [
            ({"source": "pay\x00ment"}, "NUL"),
            ({"data": {"x\x00": 1}}, "NUL"),
            ({"metadata": {"correlationId": "\x00"}}, "NUL"),
            ({"source": "\ud800"}, "surrogate"),
            ({"data": {"deep": [{"x": "a\udfffb"}]}}, "surrogate"),
            ({"data": {"x": float("nan")}}, "not JSON"),
            ({"data": {"amount": 10**400}}, "orderId"),
        ],
    )
    def test_a_value_that_postgresql_cannot_store_makes_a_dead_letter(self, more, reason):
        message = received(PAID, self.body(**more))
        assert handle(message) == "dead"
        assert reason in InboundDeadLetter.objects.get().error
        assert handle(message) == "repeat"

    def test_a_number_beyond_every_float_makes_a_dead_letter(self):
        assert handle(received(PAID, self.body().replace(b'"data": {', b'"data": {"x": 1e999, '))) == "dead"
        assert "too large" in InboundDeadLetter.objects.get().error

    @pytest.mark.parametrize("levels", [101, 900, 10_000, 1_000_000 // 2 - 1000])
    def test_nesting_of_any_depth_makes_a_dead_letter(self, levels):
        nested = b"[" * levels + b"]" * levels
        value = self.body().replace(b'"data": {', b'"data": {"x": ' + nested + b", ")
        assert handle(received(PAID, value)) == "dead"
        assert InboundDeadLetter.objects.count() == 1

    def test_ten_megabytes_make_a_dead_letter_that_keeps_their_beginning(self):
        value = self.body(data={"orderId": str(order().id), "x": "y" * 10_000_000})
        assert handle(received(PAID, value)) == "dead"
        letter = InboundDeadLetter.objects.get()
        assert "bytes" in letter.error and len(letter.envelope) == 1_000_000

    @pytest.mark.parametrize(
        "value",
        [
            b"\x01" * 250_000,
            json.dumps(["\x01" * 40_000]).encode(),
            b"[" + b"1e300," * 40_000 + b"1]",
            b"\xff" * 250_000,
        ],
        ids=["control characters", "the same in JSON", "numbers that PostgreSQL writes out", "no UTF-8"],
    )
    def test_the_dlt_event_of_any_bytes_is_small_enough_for_the_broker(self, value):
        assert handle(received(PAID, value)) == "dead"
        (event,) = DomainEvent.objects.filter(event_type=f"{PAID}.dlt").outgoing(limit=1)
        assert len(event.envelope) <= LARGEST

    def test_a_reason_and_a_key_with_strange_characters_are_stored(self):
        value = self.body(eventType="\\ud800")
        message = received(PAID, value.replace(b"\\\\ud800", b"x\\u0000"), key="k\x00")
        assert handle(message) == "dead"
        assert InboundDeadLetter.objects.get().key == "k"
        assert DomainEvent.objects.get(event_type=f"{PAID}.dlt").payload["originalEvent"]

    def test_a_value_that_the_database_refuses_makes_a_dead_letter_at_once(self):
        it = order()
        pay_order(order_id=it.id)

        def overflow(event):
            Order.objects.filter(id=it.id).update(currency="x" * 999)

        message = received(PAID, self.body())
        opened = inbox.open_message(message)
        assert inbox.process(opened, consumer=NAME, handlers={PAID: overflow}) == "dead"


class TestAge:
    OLD = dt.timedelta(days=30)

    def old(self) -> str:
        return (dt.datetime.now(dt.UTC) - self.OLD).isoformat()

    def test_an_event_older_than_the_inbox_remembers_is_dead_and_changes_nothing(self):
        it = order()
        message = received(PAID, envelope(PAID, {"orderId": str(it.id)}, timestamp=self.old()))
        assert (handle(message), status(it)) == ("dead", "pending")
        assert "remembers 30 days" in InboundDeadLetter.objects.get().error

    def test_an_entry_without_a_time_of_its_own_has_the_brokers(self):
        it = order()
        event = envelope(PAID, {"orderId": str(it.id)})
        del event["timestamp"]
        assert handle(received(PAID, event, written_at=dt.datetime.now(dt.UTC) - self.OLD)) == "dead"

    @pytest.mark.parametrize(
        ("timestamp", "result"),
        [
            ("0001-01-01T00:00:00+14:00", "done"),  # not a year in UTC: as if there were none
            ("9999-12-31T23:59:59-14:00", "done"),
            ("0001-01-01T00:00:00Z", "dead"),  # older than what the inbox remembers
            ("9999-12-31T23:59:59Z", "done"),
            (10**30, "done"),
            (None, "done"),
            ("yesterday", "done"),
            ("2026-13-01T00:00:00Z", "done"),
        ],
    )
    def test_an_event_of_any_timestamp_is_taken_or_dead(self, timestamp, result):
        it = order()
        assert handle(received(PAID, envelope(PAID, {"orderId": str(it.id)}, timestamp=timestamp))) == result

    def test_a_repeat_that_the_inbox_still_knows_is_a_repeat_at_any_age(self):
        event = envelope(PAID, {"orderId": str(order().id)})
        assert handle(received(PAID, event)) == "done"
        assert handle(received(PAID, event | {"timestamp": self.old()})) == "repeat"

    def test_a_replay_is_exempt(self):
        it = order()
        assert handle(received(PAID, envelope(PAID, {"orderId": str(it.id)}, timestamp=self.old()))) == "dead"
        InboundDeadLetter.objects.request_replay(ids=InboundDeadLetter.objects.values_list("id", flat=True))
        assert (replay_all(), status(it)) == (1, "paid")


class TestReplay:
    def test_a_replay_has_its_effect_once_however_often_it_is_asked_for(self):
        it, letter = dead_refund()
        for _ in range(2):
            InboundDeadLetter.objects.request_replay(ids=[letter.id])
        assert replay_all() == 1
        assert InboundDeadLetter.objects.request_replay(ids=[letter.id]) == []
        assert replay_all() == 0
        assert refunded(it) == 10
        letter.refresh_from_db()
        assert letter.replayed_at and letter.discarded_at is None

    def test_two_people_and_three_consumers_at_once_have_one_effect(self):
        it, letter = dead_refund()
        asked = together(2, lambda _: InboundDeadLetter.objects.request_replay(ids=[letter.id]))
        assert sorted(asked) == [[], [letter.id]]
        together(3, lambda _: replay_all())
        assert refunded(it) == 10
        assert EmailNotification.objects.filter(event_type="order.part_refunded").count() == 1

    def test_a_letter_that_another_consumer_replays_is_left_to_it(self):
        it, letter = dead_refund()
        InboundDeadLetter.objects.request_replay(ids=[letter.id])
        with psycopg.connect(dsn()) as other, connections["default"].cursor() as cursor:
            other.execute("SELECT FROM inbound_dead_letters WHERE id = %s FOR UPDATE", [letter.id])
            cursor.execute("SET lock_timeout = '1s'")
            assert (replay_all(), refunded(it)) == (0, 0)
            cursor.execute("RESET lock_timeout")
        assert (replay_all(), refunded(it)) == (1, 10)

    def test_the_broker_may_bring_the_event_again_before_and_after_its_replay(self):
        it, letter = dead_refund()
        message = received(REFUNDED, letter.envelope.encode())
        assert handle(message) == "repeat"
        InboundDeadLetter.objects.request_replay(ids=[letter.id])
        assert replay_all() == 1
        assert (handle(message), refunded(it)) == ("repeat", 10)

    def test_a_replay_needs_no_broker(self, settings):
        settings.REDIS_URL = "redis://127.0.0.1:1/0"
        it, letter = dead_refund()
        InboundDeadLetter.objects.request_replay(ids=[letter.id])
        assert (replay_all(), refunded(it)) == (1, 10)

    def test_a_discarded_letter_is_not_replayed_and_a_replayed_one_not_discarded(self):
        (discarded, first), (replayed, second) = dead_refund(), dead_refund()
        InboundDeadLetter.objects.request_replay(ids=[first.id, second.id])
        assert InboundDeadLetter.objects.discard(ids=[first.id]) == [first.id]
        assert (replay_all(), refunded(discarded), refunded(replayed)) == (1, 0, 10)
        assert InboundDeadLetter.objects.discard(ids=[second.id]) == []

    def test_a_letter_that_is_rejected_again_is_dead_again_with_the_new_reason(self, caplog):
        it, letter = dead_refund(amount=5000)
        InboundDeadLetter.objects.request_replay(ids=[letter.id])
        caplog.clear()
        assert (replay_all(), refunded(it)) == (1, 0)
        letter.refresh_from_db()
        (line,) = (record.msg for record in caplog.records if record.levelname == "ERROR")
        assert (line["event"], line["event_id"]) == ("event dead-lettered", str(letter.event_id))
        assert line["reason"] == letter.error.partition("\nReplayed: ")[2]
        assert letter.replayed_at is None and letter.replay_requested_at is None and "5000" in letter.error
        assert InboundDeadLetter.objects.request_replay(ids=[letter.id]) == [letter.id]

    def test_a_replay_that_fails_after_the_letter_was_discarded_changes_and_says_nothing(self, caplog):
        _, letter = dead_refund()
        InboundDeadLetter.objects.discard(ids=[letter.id])
        caplog.clear()
        inbox.fail_replay(letter=letter, reason="too late")
        letter.refresh_from_db()
        assert letter.error != "too late" and not caplog.records

    def test_another_consumers_letters_are_left_alone(self):
        letter = InboundDeadLetter.objects.create(
            topic=PAID, event_id=uuid.uuid4(), consumer="billing", envelope="{}", error="e"
        )
        InboundDeadLetter.objects.request_replay(ids=[letter.id])
        assert replay_all() == 0

    def test_a_letter_whose_topic_is_not_consumed_any_more_is_dead_again_and_says_so(self):
        """Otherwise it would wait for ever, and neither the front page nor the purge would count it."""
        it, letter = dead_refund()
        InboundDeadLetter.objects.request_replay(ids=[letter.id])
        others = {topic: handler for topic, handler in HANDLERS.items() if topic != REFUNDED}
        assert replay_next(consumer=NAME, handlers=others) is not None
        assert replay_next(consumer=NAME, handlers=others) is None
        assert list(InboundDeadLetter.objects.undecided()) == [letter]
        letter.refresh_from_db()
        assert REFUNDED in letter.error and refunded(it) == 0

    def test_the_look_for_replays_reads_its_index(self):
        with transaction.atomic(), connections["default"].cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")
            plan = (
                InboundDeadLetter.objects.replay_requested()
                .filter(consumer="orders")
                .order_by("id")
                .explain()
            )
        assert "inbound_dead_letters_replay" in plan


def test_the_trace_of_an_inbound_event_is_kept_with_all_that_it_causes():
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    it = order()
    event = envelope(PAID, {"orderId": str(it.id)}, metadata={"correlationId": "saga-1", "traceId": trace})
    assert handle(received(PAID, event)) == "done"
    assert DomainEvent.objects.get(event_type="order.order.paid.v1").metadata["traceId"] == trace
    assert EmailNotification.objects.get().traceparent[3:35] == trace


@pytest.mark.parametrize("trace", [7, "", "x", "0" * 32, None])
def test_a_trace_that_is_none_is_left_out(trace):
    event = envelope(PAID, {"orderId": str(order().id)}, metadata={"traceId": trace})
    assert handle(received(PAID, event)) == "done"
    assert DomainEvent.objects.get(event_type="order.order.paid.v1").metadata["traceId"] is None


def test_an_inbound_traceparent_is_taken_as_it_is():
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    event = envelope(PAID, {"orderId": str(order().id)}, metadata={"traceparent": parent})
    assert handle(received(PAID, event)) == "done"
    assert EmailNotification.objects.get().traceparent == parent
