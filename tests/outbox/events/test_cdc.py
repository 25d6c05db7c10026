"""A message of Debezium's says that a row was written, in whatever form its connector writes it; no more."""

from __future__ import annotations

import contextlib
import functools
import json

import pytest

from outbox.events.consuming import cdc
from outbox.events.consuming.cdc import Malformed, RowChange, RowChangeConsumer, read_row_change
from outbox.events.transports import BrokerAway, Consumer, Received
from outbox.telemetry.metrics import REGISTRY

MAILS, EVENTS = "orderpost.public.email_notifications", "orderpost.public.outbox_events"
ID = "0199d0e4-7c00-7000-8000-000000000001"
ENVELOPE = {
    "before": None,
    "after": {"id": ID},
    "source": {"connector": "postgresql", "schema": "public", "table": "email_notifications", "ts_ms": 1500},
    "op": "c",
    "ts_ms": 1600,
}
ROW = {"id": ID, "__op": "c", "__table": "email_notifications", "__source_ts_ms": 1500}


def body(value: object) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize(
    "value",
    [ROW, ENVELOPE, {"schema": {"type": "struct"}, "payload": ENVELOPE}, {"schema": {}, "payload": ROW}],
    ids=["row", "envelope", "envelope with schema", "row with schema"],
)
def test_a_change_is_read_in_each_form_that_debezium_writes(value):
    assert read_row_change(topic=MAILS, value=body(value)) == RowChange("email_notifications", "c", 1.5)


def test_a_bare_row_is_an_insert_into_the_table_that_its_topic_names():
    assert read_row_change(topic=MAILS, value=body({"id": ID})) == RowChange("email_notifications", "c", None)


@pytest.mark.parametrize("value", [b"", b"null", body({"schema": None, "payload": None})])
def test_a_tombstone_is_no_change(value):
    assert read_row_change(topic=MAILS, value=value) is None


@pytest.mark.parametrize(
    "value",
    [
        b"\x00\x00\x00\x00\x01\x02",  # Avro
        b"{",
        b"[" * 100_000,
        b"7",
        b"{}",
        b"\xff\xfe",
        body({"schema": {}, "payload": [1]}),
        body(ROW | {"__table": 7}),
        body(ENVELOPE | {"op": {}}),
    ],
)
def test_anything_else_is_malformed(value):
    with pytest.raises(Malformed):
        read_row_change(topic=MAILS, value=value)


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


def message(value: object, topic: str = MAILS) -> Received:
    return Received(topic, "k", value if isinstance(value, bytes) else body(value), None)


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
    it, woken = consumer_of(Broker([message(ROW)] * 99 + [message({"id": ID}, EVENTS)]))
    it.step()
    assert sorted(woken) == ["email_notifications", "outbox_events"]


@pytest.mark.parametrize("operation", ["u", "d", "t", "m"])
def test_only_what_was_written_wakes(operation):
    """An update is our own claim as a rule: a trigger that followed those would wake itself."""
    broker = Broker([message(ENVELOPE | {"op": operation}), message({"id": ID}, "orderpost.public.orders")])
    it, woken = consumer_of(broker)
    it.step()
    assert woken == [] and len(broker.committed) == 2


def test_malformed_messages_are_counted_skipped_and_logged_now_and_then(caplog):
    broker = Broker([message(b"{")] * 50, [message(b"{"), message(ROW)])
    it, woken = consumer_of(broker)
    name, labels = "orderpost_trigger_changes_total", {"trigger": "cdc", "result": "malformed"}
    before = REGISTRY.get_sample_value(name, labels) or 0
    it.step()
    it.step()
    it.disconnect()
    assert woken == ["email_notifications"]
    assert len(broker.committed) == 52
    assert REGISTRY.get_sample_value(name, labels) == before + 51
    assert sum("they cannot be read" in line.getMessage() for line in caplog.records) == 1


def test_offsets_are_committed_about_once_a_second_and_when_it_leaves(monkeypatch):
    monkeypatch.setattr(cdc, "COMMIT_SECONDS", 1000.0)
    broker = Broker([message(ROW)], [message(ROW)], [message(ROW)])
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
    broker = Broker([message(ROW)], [message(ROW)])
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
    for broker in (Broker([message(ROW)]), Away()):
        it = RowChangeConsumer(
            connect=lambda broker=broker: broker,
            wakes={"email_notifications": lambda: None},
            alive=lambda: told.append("alive"),
        )
        with contextlib.suppress(BrokerAway):
            for _ in range(2):
                it.step()
    assert told == ["alive"] * 2
