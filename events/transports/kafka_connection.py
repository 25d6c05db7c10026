"""Connect to Kafka: the configuration of producers, consumers and `make_topics`.

KAFKA_OPTIONS has librdkafka's own names, except those in `RESERVED`.

librdkafka answers a failed call with "timed out" or "transport failure", and passes the reason (a wrong
password, an unknown certificate, a refused connection) to a callback. `Reasons` combines the two.
"""

from __future__ import annotations

import logging
from typing import Any

import confluent_kafka as kafka
from django.conf import settings

#: Without a logger, librdkafka writes its lines to stderr.
LOGGER = logging.getLogger("confluent_kafka")
#: By default, brokers allow no shorter session.
SESSION_MS = 6000
#: librdkafka warns if another client has them.
_OF_CONSUMERS = ("session.timeout.ms", "heartbeat.interval.ms")
#: The options that orderpost sets, with their other names, and options that would break what they ensure:
#: events are acknowledged by all copies in sync, keep their order, and are committed after their effect.
RESERVED = frozenset(
    {
        *("bootstrap.servers", "metadata.broker.list", "client.id"),
        *("acks", "request.required.acks", "enable.idempotence", "transactional.id", "partitioner"),
        *("delivery.timeout.ms", "message.timeout.ms", "linger.ms", "queue.buffering.max.ms"),
        *("message.max.bytes", "allow.auto.create.topics", "topic.metadata.refresh.interval.ms"),
        *("group.id", "group.instance.id", "group.protocol", "partition.assignment.strategy"),
        *("enable.auto.commit", "auto.commit.enable", "enable.auto.offset.store"),
        *("auto.offset.reset", "isolation.level", "enable.partition.eof"),
    }
)


class Reasons:
    """The last reason why no broker was reached. Pass `keep` as `error_cb`."""

    def __init__(self) -> None:
        self._last = ""

    def keep(self, error: Any) -> None:
        """Keep a reason. Prefer others to "all brokers are down", which explains nothing."""
        if error.code() != kafka.KafkaError._ALL_BROKERS_DOWN or not self._last:
            self._last = error.str()

    def explain(self, error: Any) -> str:
        """Return the text of an error with the last reason."""
        text: str = error.args[0].str() if isinstance(error, kafka.KafkaException) else error.str()
        return f"{text}: {self._last}" if self._last and self._last not in text else text

    def forget(self) -> None:
        """Forget the last reason, because a broker was reached since."""
        self._last = ""


def connection() -> dict[str, Any]:
    """Return the configuration that every client needs."""
    return {name: value for name, value in settings.KAFKA_OPTIONS.items() if name not in _OF_CONSUMERS} | {
        "bootstrap.servers": settings.KAFKA_BOOTSTRAP_SERVERS
    }


def session_times() -> dict[str, int]:
    """Return how long a consumer may be silent before others get its partitions, and its heartbeat."""
    session = int(settings.KAFKA_OPTIONS.get("session.timeout.ms", SESSION_MS))
    heartbeat = int(settings.KAFKA_OPTIONS.get("heartbeat.interval.ms", session / 4))
    return dict(zip(_OF_CONSUMERS, (session, heartbeat), strict=True))
