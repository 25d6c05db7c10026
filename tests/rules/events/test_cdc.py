"""A message on a table's topic wakes what works at that table, whatever the message says."""

from __future__ import annotations

import contextlib
import functools

import pytest

from outbox.events.consuming.cdc import RowChangeConsumer
from outbox.events.transports import Consumer
from tests.kit.words import BrokerAway, Received, cdc

MAILS, EVENTS = "orderpost.public.email_notifications", "orderpost.public.outbox_events"
ROW = b'{"id": "0199d0e4-7c00-7000-8000-000000000001"}'


class Broker(Consumer):
    """Gives out what the test says; keeps what was committed, and whether the member left."""

    def __init__(self, *rounds: list[Received]) -> None:
        self.rounds = list(rounds)
        self.committed: list[Received] = []
        self.away = self.closed = False

    def receive(self, *, seconds):
        return self.rounds.pop(0) if self.rounds else []

    def done(self, messages):
        if self.away:
            raise BrokerAway("no answer")
        self.committed += messages

    def close(self):
        self.closed = True


def message(value: bytes = ROW, topic: str = MAILS) -> Received:
    return Received(topic, "k", value, None)


def consumer_of(broker: Broker) -> tuple[RowChangeConsumer, list[str]]:
    """Return a consumer that has just joined, and the list of what it wakes from then on."""
    woken: list[str] = []
    tables = ("email_notifications", "outbox_events")
    wakes = {table: functools.partial(woken.append, table) for table in tables}
    it = RowChangeConsumer(connect=lambda: broker, wakes=wakes)
    rounds, broker.rounds = broker.rounds, []
    it.step()
    assert sorted(woken) == sorted(tables)  # whatever was written while nobody listened
    woken.clear()
    broker.rounds = rounds
    return it, woken


def test_a_hundred_changes_wake_each_table_once():
    it, woken = consumer_of(Broker([message()] * 99 + [message(topic=EVENTS)]))
    it.step()
    assert sorted(woken) == ["email_notifications", "outbox_events"]


@pytest.mark.parametrize(
    "value", [b"", b"null", b"{", b"\x00\x00\x00\x00\x01\x02", b"\xff\xfe", b"[" * 100_000]
)
def test_a_message_wakes_whatever_it_contains(value):
    broker = Broker([message(value)])
    it, woken = consumer_of(broker)
    it.step()
    assert woken == ["email_notifications"] and len(broker.committed) == 1


def test_offsets_are_committed_about_once_a_second_and_when_it_leaves(monkeypatch):
    monkeypatch.setattr(cdc, "COMMIT_SECONDS", 1000.0)
    broker = Broker([message()], [message()], [message()])
    it, _ = consumer_of(broker)
    it.step()
    assert len(broker.committed) == 1
    it.step()
    it.step()
    assert len(broker.committed) == 1
    it.disconnect()
    assert len(broker.committed) == 3 and broker.closed


def test_a_broker_that_is_away_when_it_leaves_gives_the_last_changes_out_again(monkeypatch):
    monkeypatch.setattr(cdc, "COMMIT_SECONDS", 1000.0)
    broker = Broker([message()], [message()])
    it, _ = consumer_of(broker)
    it.step()
    it.step()
    broker.away = True
    it.disconnect()
    assert broker.closed and len(broker.committed) == 1
    it._connect = lambda: Broker()
    it.step()  # what was not committed is the old membership's
    it.disconnect()


def test_it_says_after_each_round_that_the_broker_answers_and_not_while_that_is_away():
    class Away(Broker):
        def receive(self, *, seconds):
            raise BrokerAway("no answer")

    told: list[str] = []
    for broker in (Broker([message()]), Away()):
        it = RowChangeConsumer(
            connect=lambda broker=broker: broker,
            wakes={"email_notifications": lambda: None},
            alive=lambda: told.append("alive"),
        )
        with contextlib.suppress(BrokerAway):
            for _ in range(2):
                it.step()
    assert told == ["alive"] * 2
