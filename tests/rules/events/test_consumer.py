"""The loop of a consumer: in order for each key, whatever fails for a while, and without losing anything."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, connection

from tests.kit.brokers import Hand, consume
from tests.kit.events import (
    INSUFFICIENT,
    PAID,
    REFUNDED,
    dead_refund,
    envelope,
    handle,
    order,
    received,
    refunded,
    status,
)
from tests.kit.races import broken
from tests.kit.waiting import until
from tests.kit.words import (
    HANDLERS,
    Envelope,
    InboundDeadLetter,
    Order,
    Received,
    consumer,
)

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_events_of_a_round_are_acknowledged_together_and_before_the_next_one(monkeypatch):
    """Kafka takes as long to keep an offset as to keep an event; one for each event was most of the work."""
    monkeypatch.setattr(consumer, "ACKNOWLEDGE_SECONDS", 60)
    said: list[list[Received]] = []
    monkeypatch.setattr(Hand, "done", lambda _, messages: said.append(list(messages)))
    paid = lambda: received(PAID, envelope(PAID, {"orderId": str(order().id)}))  # noqa: E731
    rounds = [[paid() for _ in range(count)] for count in (1, 5, 3)]
    it = consume(Hand(*rounds))
    it.step()  # its first is acknowledged by itself
    for number in (1, 2):
        it.step()
        assert said[number:] == [rounds[number]]


def test_a_long_round_is_acknowledged_while_it_goes_on(fast):
    fast.acknowledgements()
    events = [received(PAID, envelope(PAID, {"orderId": str(order().id)})) for _ in range(3)]
    hand, seen = Hand(events), []
    consume(hand, **{PAID: lambda _: seen.append(len(hand.acknowledged))}).step()
    assert seen == [0, 1, 2] and hand.acknowledged == events


def test_a_temporary_error_holds_back_its_key_and_nobody_else_and_is_tried_again(fast):
    fast.retries()
    held_back, free = order(), order()
    fails = {"left": 2}

    def flaky(event):
        if event.data["orderId"] == str(held_back.id) and fails["left"]:
            fails["left"] -= 1
            raise TimeoutError("a service of ours is slow")
        HANDLERS[PAID](event)

    first = received(PAID, envelope(PAID, {"orderId": str(held_back.id)}), key="one")
    behind = received(PAID, envelope(PAID, {"orderId": str(held_back.id)}), key="one")
    other = received(PAID, envelope(PAID, {"orderId": str(free.id)}), key="free")
    hand = Hand([first, behind, other])
    it = consume(hand, **{PAID: flaky})
    it.step()
    assert hand.acknowledged == [other]
    until(lambda: len(hand.acknowledged) >= 3, meanwhile=lambda: it.step(seconds=0.05))
    assert hand.acknowledged == [other, first, behind]
    assert status(held_back) == status(free) == "paid"
    assert it.counts == {"done": 2, "repeat": 0, "dead": 1}  # the second payment is money to be returned


def test_an_event_that_goes_on_failing_is_dead_in_the_end_and_its_key_goes_on(fast):
    fast.retries()

    def failing(event):
        raise ZeroDivisionError("no\nDETAIL: a row with ann@example.com")

    it = order()
    bad = received(REFUNDED, envelope(REFUNDED, {"orderId": str(it.id)}), key="k")
    good = received(PAID, envelope(PAID, {"orderId": str(it.id)}), key="k")
    hand = Hand([bad, received(REFUNDED, b"{", key="k"), good])
    loop = consume(hand, **{REFUNDED: failing})
    until(lambda: len(hand.acknowledged) >= 3, meanwhile=lambda: loop.step(seconds=0.01))
    errors = set(InboundDeadLetter.objects.values_list("error", flat=True))
    assert "ZeroDivisionError: no" in errors and len(errors) == 2
    assert status(it) == "paid"


def test_a_database_that_is_away_is_no_events_fault(monkeypatch):
    def away(event):
        monkeypatch.setitem(connection.settings_dict, "PORT", "1")  # nobody listens there
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    hand = Hand([received(PAID, envelope(PAID, {"orderId": str(order().id)}))])
    it = consume(hand, **{PAID: away})
    with pytest.raises(OperationalError):
        it.step()
    it.disconnect()
    monkeypatch.undo()
    assert not hand.acknowledged and not InboundDeadLetter.objects.exists()


#: What PostgreSQL says about itself: a full disk, too many connections, a start, a shutdown, an error of the
#: disk, and a server without writes.
STATES = ["53100", "53300", "57P03", "57P01", "58030", "25006"]


@pytest.mark.parametrize("state", STATES)
def test_an_event_waits_without_a_try_while_postgres_says_that_it_cannot_write(fast, state):
    fast.retries()
    it = order()
    paid = received(PAID, envelope(PAID, {"orderId": str(it.id)}))
    hand = Hand(*[[paid]] * 20)
    loop = consume(hand)
    with broken("orders", f"RAISE EXCEPTION 'no space' USING ERRCODE = '{state}'"):
        for _ in range(2 * consumer.TRIES):
            with pytest.raises(OperationalError):
                loop.step(seconds=0.01)
            loop.disconnect()
    assert not hand.acknowledged and not InboundDeadLetter.objects.exists()
    loop.step(seconds=0.01)
    assert status(it) == "paid" and hand.acknowledged == [paid]


def test_an_event_that_kills_its_own_backend_is_dead_in_the_end(fast):
    fast.retries()

    def kill(event):
        connection.connection.pgconn.finish()  # a backend that dies sends no code
        connection.cursor().execute("SELECT 1")

    hand = Hand([received(PAID, envelope(PAID, {"orderId": str(order().id)}))])
    it = consume(hand, **{PAID: kill})
    until(lambda: hand.acknowledged, meanwhile=lambda: it.step(seconds=0.01))
    assert InboundDeadLetter.objects.count() == 1


def test_a_statement_that_always_takes_too_long_does_not_stop_the_others(fast):
    fast.retries()

    def slow(event):
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL statement_timeout = 1")
            cursor.execute("SELECT pg_sleep(1)")

    it = order()
    hand = Hand(
        [
            received(PAID, envelope(PAID, {"orderId": str(it.id)}), key="one"),
            received(INSUFFICIENT, envelope(INSUFFICIENT, {"orderId": str(it.id)}), key="two"),
        ]
    )
    loop = consume(hand, **{PAID: slow})
    until(lambda: len(hand.acknowledged) >= 2, meanwhile=lambda: loop.step(seconds=0.01))
    assert status(it) == "cancelled" and InboundDeadLetter.objects.count() == 1


class TestReplays:
    def test_a_requested_replay_is_done_by_the_next_round(self):
        it, letter = dead_refund()
        InboundDeadLetter.objects.request_replay(ids=[letter.id])
        consume(Hand()).step(seconds=0.01)
        assert refunded(it) == 10

    def test_a_replay_that_fails_for_a_while_holds_back_nothing_and_is_tried_again(self, fast):
        fast.retries()
        fast.replays()
        (failing, first), (other, second) = dead_refund(), dead_refund()
        fails = {"left": 2}

        def flaky(event):
            if event.data["orderId"] == str(failing.id) and fails["left"]:
                fails["left"] -= 1
                raise TimeoutError
            HANDLERS[REFUNDED](event)

        InboundDeadLetter.objects.request_replay(ids=[first.id, second.id])
        it = consume(Hand(), **{REFUNDED: flaky})
        it.step(seconds=0.01)
        assert (refunded(failing), refunded(other)) == (0, 10)
        until(lambda: refunded(failing), meanwhile=lambda: it.step(seconds=0.01))
        assert refunded(failing) == 10

    @pytest.mark.parametrize("state", STATES)
    def test_a_replay_waits_without_a_try_while_postgres_says_that_it_cannot_write(self, fast, state):
        fast.retries()
        fast.replays()
        it, letter = dead_refund()
        InboundDeadLetter.objects.request_replay(ids=[letter.id])
        loop = consume(Hand())
        with broken("orders", f"RAISE EXCEPTION 'no space' USING ERRCODE = '{state}'"):
            for _ in range(2 * consumer.TRIES):
                with pytest.raises((OperationalError, InterfaceError)):
                    loop.step(seconds=0.01)
                loop.disconnect()
            assert InboundDeadLetter.objects.get().replay_requested_at
        loop.step(seconds=0.01)
        assert refunded(it) == 10

    def test_a_replay_of_many_letters_lets_live_events_a_pause_and_a_stop_come_between(self, monkeypatch):
        monkeypatch.setattr(consumer, "MOST_REPLAYS", 3)
        events = [envelope(REFUNDED, {"orderId": str(uuid.uuid4())}) for _ in range(8)]
        assert {handle(received(REFUNDED, event)) for event in events} == {"dead"}
        InboundDeadLetter.objects.request_replay(ids=InboundDeadLetter.objects.values_list("id", flat=True))
        placed, replayed = order(), []
        loop = consume(
            Hand([received(PAID, envelope(PAID, {"orderId": str(placed.id)}))]), **{REFUNDED: replayed.append}
        )
        loop.step(seconds=60)
        assert (len(replayed), status(placed)) == (3, "paid")
        for count in (6, 8):
            loop.step(seconds=60)
            assert len(replayed) == count

    def test_a_replay_that_goes_on_failing_is_dead_again(self, fast):
        fast.retries()
        fast.replays()
        _, letter = dead_refund()

        def failing(event):
            raise ZeroDivisionError("x")

        InboundDeadLetter.objects.request_replay(ids=[letter.id])
        it = consume(Hand(), **{REFUNDED: failing})
        until(
            lambda: not InboundDeadLetter.objects.get().replay_requested_at,
            meanwhile=lambda: it.step(seconds=0.01),
        )
        assert InboundDeadLetter.objects.get().error == f"{letter.error}\nReplayed: ZeroDivisionError: x"


PAID_V2 = "payment.payment.succeeded.v2"


def as_v1(event: Envelope) -> Envelope:
    """Return the first version of an event of the second, which has the order in an object of its own."""
    id = event.data.get("order", {}).get("id")
    return Envelope(event.id, PAID, 1, event.source, {"orderId": id}, {})


def pay_v2(event: Envelope) -> None:
    HANDLERS[PAID](as_v1(event))


def v1(id: uuid.UUID, **more: Any) -> Received:
    return received(PAID, envelope(PAID, {"orderId": str(id)}, **more))


def v2(id: uuid.UUID, **more: Any) -> Received:
    return received(PAID_V2, envelope(PAID_V2, {"order": {"id": str(id)}}, version=2, **more))


def counts_of(*messages: Received) -> dict[str, int]:
    it = consume(Hand(list(messages)), **{PAID_V2: pay_v2})
    it.step(seconds=0.01)
    return {name: count for name, count in it.counts.items() if count}


def test_each_version_has_its_handler():
    of_v1, of_v2 = order(), order()
    assert counts_of(v1(of_v1.id), v2(of_v2.id)) == {"done": 2}
    assert set(Order.objects.values_list("status", flat=True)) == {"paid"}


@pytest.mark.parametrize("arrival", ["112", "211"])
def test_a_fact_that_is_published_in_both_versions_has_its_effect_once(arrival):
    it, event_id = order(), str(uuid.uuid4())
    versions = {"1": v1(it.id, eventId=event_id), "2": v2(it.id, eventId=event_id)}
    assert counts_of(*(versions[number] for number in arrival)) == {"done": 1, "repeat": 2}
    assert Order.objects.get().version == 2
    assert not InboundDeadLetter.objects.exists()


def test_a_version_that_its_topic_does_not_have_is_a_dead_letter():
    it = order()
    assert counts_of(received(PAID_V2, envelope(PAID_V2, {"order": {"id": str(it.id)}}))) == {"dead": 1}
    assert "its version is not" in InboundDeadLetter.objects.get().error
