"""Change data capture as a trigger: a message on a table's topic wakes what works at that table.

A message is only a wake-up. Its content is not read, and it may be lost, late or repeated: the row in
PostgreSQL has the state. Offsets are committed about once a second; after a kill, the next consumer of the
group repeats the last second. `manage.py consume_cdc` runs this module.
"""

from __future__ import annotations

import importlib.util
import threading
import time
from collections.abc import Callable, Container, Mapping

import structlog
from django.conf import settings

from events.transports import Lag, consumer_lags
from events.transports.base import BrokerAway, BrokerConsumer, Received
from runtime.models import Heartbeat
from runtime.process.loop import run_until_stopped

log = structlog.get_logger(__name__)

#: What docker/debezium's connector writes.
TOPICS = ("orderpost.public.email_notifications", "orderpost.public.outbox_events")
GROUP = "orderpost-cdc"
#: The heartbeat of the consumers. It is purged a week after the last beat, and then the shop has none.
CDC = "cdc"
WAIT_SECONDS = 1.0
COMMIT_SECONDS = 1.0


def table_of(topic: str) -> str:
    """Return the table that a topic of Debezium names last.

    >>> table_of("orderpost.public.email_notifications")
    'email_notifications'
    """
    return topic.rpartition(".")[2]


class RowChangeConsumer:
    """Consume through a connection that `connect` makes. `step` does one round.

    `wakes` has a function for each table. It must return at once. `alive` is called after each round that the
    broker did not interrupt.
    """

    def __init__(
        self,
        *,
        connect: Callable[[], BrokerConsumer],
        wakes: Mapping[str, Callable[[], None]],
        alive: Callable[[], None] = lambda: None,
    ) -> None:
        self._connect, self._wakes, self._alive = connect, wakes, alive
        self._consumer: BrokerConsumer | None = None
        self._unacknowledged: list[Received] = []
        self._acknowledge_at = 0.0  # monotonic

    def step(self, *, seconds: float = WAIT_SECONDS) -> None:
        """Do one round of about `seconds`. Raise `BrokerAway`."""
        if self._consumer is None:
            self._consumer = self._connect()
            for wake in self._wakes.values():
                wake()  # changes may have been missed
        received = self._consumer.receive(seconds=seconds)
        for table in {table_of(message.topic) for message in received}:
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

    def _acknowledge(self, consumer: BrokerConsumer) -> None:
        messages, self._unacknowledged = self._unacknowledged, []
        self._acknowledge_at = time.monotonic() + COMMIT_SECONDS
        if messages:
            consumer.done(messages)


def run(
    *,
    connect: Callable[[], BrokerConsumer],
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


def is_used(heartbeats: Container[str] | None = None) -> bool:
    """Return whether a consumer has run within a week, and this process has what it needs to ask Kafka.

    `heartbeats` are the names of all heartbeats. Without them, query the database.
    """
    if not settings.KAFKA_BOOTSTRAP_SERVERS or importlib.util.find_spec("confluent_kafka") is None:
        return False
    return has_run() if heartbeats is None else CDC in heartbeats


def has_run() -> bool:
    """Return whether a consumer has run within a week. Query the database."""
    return Heartbeat.objects.filter(name=CDC).exists()


def read_cdc_lags() -> list[Lag]:
    """Return how far the consumers are behind on each topic. Raise `BrokerAway`."""
    return consumer_lags(topics=TOPICS, group=GROUP, transport="kafka")
