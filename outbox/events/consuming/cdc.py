"""Change data capture as a trigger: wake the drain and the relay when Debezium reports a row.

A message is only a wake-up, because the row in PostgreSQL has the state. So a message may be lost, late or
repeated, and a message that cannot be read is skipped. Offsets are committed about once a second, so after a
kill the next consumer of the group repeats the last second. `manage.py consume_cdc` runs this module.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import structlog
from opentelemetry.trace import SpanKind

from outbox.events.transports.base import BrokerAway, Consumer, Received, time_of
from outbox.process.loop import run_until_stopped
from outbox.telemetry import instruments, tracing

log = structlog.get_logger(__name__)

WAIT_SECONDS = 1.0
COMMIT_SECONDS = 1.0
LOG_SECONDS = 10.0  # between two log lines about messages that cannot be read
#: Debezium's codes for a row that was inserted, or read by a snapshot.
WRITTEN = frozenset({"c", "r"})


class RowChange(NamedTuple):
    """A message's content. `committed_at` is by the database's clock (epoch seconds), None if unknown."""

    table: str
    operation: str
    committed_at: float | None


class Malformed(ValueError):
    """The message is not one of Debezium's."""


def read_row_change(*, topic: str, value: bytes) -> RowChange | None:
    """Read Debezium's envelope, or the row that ExtractNewRecordState makes of it. None means a tombstone.

    Either may be in `payload`, next to its schema. The names of `add.fields` have the prefix `__`. Raise
    `Malformed`.
    """
    if not value:
        return None
    try:
        found = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"no JSON: {error}") from error
    if isinstance(found, dict) and found.keys() == {"schema", "payload"}:
        found = found["payload"]
    if found is None:
        return None
    if not isinstance(found, dict) or not found:
        raise Malformed("no JSON object")
    source = found.get("source")
    if isinstance(source, dict):
        table, operation, milliseconds = source.get("table"), found.get("op"), source.get("ts_ms")
    else:
        table, operation, milliseconds = (found.get(f"__{name}") for name in ("table", "op", "source_ts_ms"))
    table = topic.rpartition(".")[2] if table is None else table
    operation = "c" if operation is None else operation
    if not isinstance(table, str) or not isinstance(operation, str):
        raise Malformed("table and op are texts in a change")
    return RowChange(table, operation, _seconds(milliseconds))


def _seconds(milliseconds: Any) -> float | None:
    if type(milliseconds) not in (int, float) or not milliseconds > 0:
        return None
    time = time_of(milliseconds)
    return None if time is None else time.timestamp()


class RowChangeConsumer:
    """Consume through a connection that `connect` makes. `step` does one round.

    `wakes` has a function for each table. It must return at once. `alive` is called after each round that the
    broker did not interrupt.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], Consumer],
        wakes: Mapping[str, Callable[[], None]],
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._connect, self._wakes, self._alive = connect, wakes, alive
        self._consumer: Consumer | None = None
        self._unacknowledged: list[Received] = []
        self._acknowledge_at = self._log_at = 0.0  # monotonic
        self._malformed = 0

    def step(self, *, seconds: float = WAIT_SECONDS) -> None:
        """Do one round of about `seconds`. Raise `BrokerAway`."""
        if self._consumer is None:
            self._consumer = self._connect()
            for wake in self._wakes.values():
                wake()  # because changes may have been missed
        received = self._consumer.receive(seconds=seconds)
        if tables := {table for one in received if (table := self._read(one))}:
            with tracing.span("trigger cdc", kind=SpanKind.CONSUMER):
                for table in tables:
                    self._wakes[table]()
        self._unacknowledged += received
        if self._unacknowledged and time.monotonic() >= self._acknowledge_at:
            self._acknowledge(self._consumer)
        self._alive()

    def disconnect(self) -> None:
        """Commit the offsets of received messages if the broker answers, and leave the group."""
        if self._consumer is None:
            return
        consumer, self._consumer = self._consumer, None
        try:
            self._acknowledge(consumer)
        except BrokerAway:
            log.debug("offsets are not committed, the last changes come again")
        finally:
            self._unacknowledged.clear()
            consumer.close()

    def _acknowledge(self, consumer: Consumer) -> None:
        messages, self._unacknowledged = self._unacknowledged, []
        self._acknowledge_at = time.monotonic() + COMMIT_SECONDS
        if messages:
            consumer.done(messages)

    def _read(self, received: Received) -> str:
        """Count a message, and return the table whose drain or relay must be woken, or an empty text."""
        try:
            change = read_row_change(topic=received.topic, value=received.value)
        except Malformed as error:
            self._skip(received.topic, error)
            return ""
        if change is None or change.operation not in WRITTEN or change.table not in self._wakes:
            instruments.CHANGES.labels("cdc", "ignored").inc()
            return ""
        instruments.CHANGES.labels("cdc", "seen").inc()
        if change.committed_at is not None:
            instruments.CHANGE_DELAYS.labels("cdc").observe(max(0.0, time.time() - change.committed_at))
        return change.table

    def _skip(self, topic: str, error: Malformed) -> None:
        instruments.CHANGES.labels("cdc", "malformed").inc()
        self._malformed += 1
        if time.monotonic() >= self._log_at:
            log.warning(
                "changes skipped: they cannot be read", topic=topic, error=str(error), count=self._malformed
            )
            self._malformed, self._log_at = 0, time.monotonic() + LOG_SECONDS


def run(
    *,
    connect: Callable[[], Consumer],
    wakes: Mapping[str, Callable[[], None]],
    alive: Callable[[], None],
    stopped: threading.Event,
) -> None:
    """Consume until `stopped`. Try again while the broker is away; meanwhile the poll sends."""
    consumer = RowChangeConsumer(connect=connect, wakes=wakes, alive=alive)
    try:
        run_until_stopped(
            step=consumer.step,
            stopped=stopped,
            errors=(BrokerAway,),
            reconnect=consumer.disconnect,
            describe=lambda _: "changes are not seen: the broker is away",
        )
    finally:
        consumer.disconnect()
