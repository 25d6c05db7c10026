"""Kafka, through confluent-kafka (extra `kafka`): an idempotent producer, and explicit commits of offsets.

The key decides the partition, so the events of one aggregate stay in order within a topic, and each partition
has one consumer of a group. `manage.py make_topics` or the broker's auto-creation makes the topics.
"""

from __future__ import annotations

import datetime as dt
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

import confluent_kafka as kafka
import structlog
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from events.transports import base
from events.transports.base import (
    BrokerAnswer,
    BrokerAway,
    Message,
    Received,
    Refused,
    TopicUnavailable,
    time_of,
)
from events.transports.kafka_connection import LOGGER, RESERVED, Reasons, connection, session_times

log = structlog.get_logger(__name__)

DELIVERY_SECONDS = 10.0
METADATA_SECONDS = 5.0
#: Errors after which the broker will never take this message.
_ABOUT_THE_MESSAGE = frozenset(
    {
        kafka.KafkaError.MSG_SIZE_TOO_LARGE,
        kafka.KafkaError.INVALID_MSG,
        kafka.KafkaError.INVALID_MSG_SIZE,
        kafka.KafkaError.INVALID_RECORD,
    }
)
#: Errors after which the broker takes no message of this topic now. A timeout is one of them, because the
#: topic's leader may be away. If the whole broker is away, the next query of the metadata fails.
_ABOUT_THE_TOPIC = frozenset(
    {
        kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
        kafka.KafkaError._UNKNOWN_TOPIC,
        kafka.KafkaError._UNKNOWN_PARTITION,
        kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,
        kafka.KafkaError.TOPIC_EXCEPTION,
        kafka.KafkaError.POLICY_VIOLATION,
        kafka.KafkaError.LEADER_NOT_AVAILABLE,
        kafka.KafkaError.NOT_ENOUGH_REPLICAS,
        kafka.KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        kafka.KafkaError._MSG_TIMED_OUT,
    }
)
#: Errors of one topic. The consumer gets none of its messages, but continues with the other topics.
_UNREADABLE = frozenset(
    {
        kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
        kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,
        kafka.KafkaError.TOPIC_EXCEPTION,
    }
)
#: Errors after which another consumer of the group has the partitions. It gets messages that were not
#: acknowledged in time.
_REBALANCED = frozenset(
    {
        kafka.KafkaError.ILLEGAL_GENERATION,
        kafka.KafkaError.UNKNOWN_MEMBER_ID,
        kafka.KafkaError.REBALANCE_IN_PROGRESS,
        kafka.KafkaError._ASSIGNMENT_LOST,
        kafka.KafkaError._STATE,
    }
)
REMIND_SECONDS = 60.0  # between two log lines about a topic that cannot be read
BATCH = 100
PRODUCER: dict[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    "message.max.bytes": 1_500_000,
}


def check_options() -> None:
    """Raise `ImproperlyConfigured` if librdkafka refuses KAFKA_OPTIONS, or if they name a reserved option.

    Ask it by clients that know no broker, so they connect to none.
    """
    if reserved := sorted(RESERVED & settings.KAFKA_OPTIONS.keys()):
        raise ImproperlyConfigured(
            f"KAFKA_OPTIONS must not set {', '.join(reserved)}, because orderpost does."
        )
    common = connection()
    del common["bootstrap.servers"]
    try:
        kafka.Producer(common | PRODUCER, logger=LOGGER)
        kafka.Consumer(settings.KAFKA_OPTIONS | {"group.id": "check"}, logger=LOGGER).close()
    except (kafka.KafkaException, TypeError) as error:
        reason = error.args[0].str() if isinstance(error, kafka.KafkaException) else error
        raise ImproperlyConfigured(f"KAFKA_OPTIONS: {reason}") from None


class Publisher(base.Publisher):
    """One producer, which is replaced after it could not deliver a message."""

    def __init__(self) -> None:
        self._producer: Any = None
        self._known: set[str] = set()  # topics that the broker has
        self._reasons = Reasons()

    def check(self) -> None:
        try:
            self._connected().list_topics(timeout=METADATA_SECONDS)
        except kafka.KafkaException as error:
            raise self._away(error) from error

    def publish(self, messages: Sequence[Message]) -> list[BrokerAnswer]:
        producer = self._connected()
        missing = {topic: self._look_up(topic) for topic in {message.topic for message in messages}}
        answers: list[object] = [BrokerAway("no answer")] * len(messages)

        def delivered(number: int) -> Any:
            def keep(error: Any, _: Any) -> None:
                answers[number] = error

            return keep

        for number, message in enumerate(messages):
            if reason := missing[message.topic]:
                answers[number] = reason
                continue
            try:
                producer.produce(
                    message.topic,
                    message.value,
                    message.key,
                    on_delivery=delivered(number),
                    headers=list(message.headers),
                )
            except kafka.KafkaException as error:
                answers[number] = error.args[0]
            except BufferError:
                break  # the other messages are not in the buffer, so they count as not delivered
        producer.flush(DELIVERY_SECONDS + 1)
        results = [self._read(answer) for answer in answers]
        if None in results:
            self._reasons.forget()
        if any(isinstance(one, BrokerAway | TopicUnavailable) for one in results):
            self.close()  # because its buffer may have messages that will be published again
        return results

    def close(self) -> None:
        """Drop the producer and all messages that it has not sent."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None
        self._known.clear()

    def _connected(self) -> Any:
        if self._producer is None:
            own = {"delivery.timeout.ms": int(DELIVERY_SECONDS * 1000), "error_cb": self._reasons.keep}
            self._producer = kafka.Producer(connection() | PRODUCER | own, logger=LOGGER)
        return self._producer

    def _away(self, error: kafka.KafkaException) -> BrokerAway:
        """Return the error with its reason. Drop the producer, which would reconnect many times a second."""
        self._producer.poll(0)  # this calls `keep` with the reasons
        self.close()
        return BrokerAway(self._reasons.explain(error))

    def _read(self, answer: object) -> BrokerAnswer:
        if not isinstance(answer, kafka.KafkaError):
            return cast(BrokerAnswer, answer)
        if answer.code() in _ABOUT_THE_MESSAGE:
            return Refused(answer.str())
        if answer.code() in _ABOUT_THE_TOPIC:
            return TopicUnavailable(self._reasons.explain(answer))
        return BrokerAway(self._reasons.explain(answer))

    def _look_up(self, topic: str) -> TopicUnavailable | None:
        """Query an unknown topic, because a message to a missing topic would wait for its timeout.

        Raise `BrokerAway`.
        """
        if topic in self._known:
            return None
        try:
            found = self._producer.list_topics(topic, timeout=METADATA_SECONDS).topics[topic]
        except kafka.KafkaException as error:
            raise self._away(error) from error
        if found.error is not None:
            return TopicUnavailable(found.error.str())
        self._known.add(topic)
        return None


class Consumer(base.Consumer):
    """A member of a group. It commits offsets up to the first message that is not done.

    With `creates`, a cluster with auto-creation makes missing topics.
    """

    def __init__(self, *, topics: Sequence[str], group: str, name: str, creates: bool = True) -> None:
        self._open: dict[tuple[str, int], set[int]] = defaultdict(set)
        self._next: dict[tuple[str, int], int] = {}
        self._troubles: list[str] = []
        self._reasons = Reasons()
        self._unreadable: dict[str, float] = {}  # when the last log line about each topic was written
        self._consumer = kafka.Consumer(
            connection()
            | session_times()
            | {
                "group.id": group,
                "client.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "allow.auto.create.topics": creates,
                "topic.metadata.refresh.interval.ms": 5000,
                "error_cb": self._error,
            },
            logger=LOGGER,
        )
        self._consumer.subscribe(list(topics), on_revoke=self._revoked)

    def receive(self, *, seconds: float) -> list[Received]:
        self._troubles.clear()
        found = []
        for message in self._consume(seconds):
            if (error := message.error()) is not None:
                if error.code() not in _UNREADABLE:
                    raise BrokerAway(self._reasons.explain(error))
                self._skip(message.topic(), error)
                continue
            place = (message.topic(), message.partition())
            self._open[place].add(message.offset())
            self._next[place] = message.offset() + 1
            key = (message.key() or b"").decode("utf-8", "replace")
            token = (place, message.offset())
            written_at = _time(message.timestamp())
            found.append(Received(message.topic(), key, message.value() or b"", token, written_at))
        if found:
            self._reasons.forget()
        elif self._troubles:
            raise BrokerAway(self._troubles[-1])
        return found

    def _consume(self, seconds: float) -> list[Any]:
        """Wait for one message, then take more without waiting. `consume` alone would wait for all."""
        first = self._consumer.poll(seconds)
        if first is None:
            return []
        return [first, *self._consumer.consume(BATCH - 1, timeout=0)]

    def _skip(self, topic: str, error: Any) -> None:
        """Log at times that a topic cannot be read. Do not log a missing topic, which has no events yet."""
        if error.code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
            return
        now = time.monotonic()
        if now - self._unreadable.get(topic, -REMIND_SECONDS) >= REMIND_SECONDS:
            self._unreadable[topic] = now
            log.error("stream cannot be read", topic=topic, error=error.str(), seconds=REMIND_SECONDS)

    def done(self, messages: Sequence[Received]) -> None:
        places = set()
        for message in messages:
            place, offset = cast("tuple[tuple[str, int], int]", message.token)
            self._open[place].discard(offset)
            places.add(place)
        offsets = [
            kafka.TopicPartition(*place, min(self._open[place], default=self._next[place]))
            for place in places
            if place in self._next
        ]
        try:
            if offsets:
                self._consumer.commit(offsets=offsets, asynchronous=False)
        except kafka.KafkaException as error:
            if error.args[0].code() not in _REBALANCED:
                raise BrokerAway(str(error)) from error

    def close(self) -> None:
        self._consumer.close()

    def _error(self, error: Any) -> None:
        self._reasons.keep(error)
        if error.code() == kafka.KafkaError._ALL_BROKERS_DOWN:
            self._troubles.append(self._reasons.explain(error))

    def _revoked(self, _: Any, partitions: Sequence[Any]) -> None:
        for one in partitions:
            self._open.pop((one.topic, one.partition), None)
            self._next.pop((one.topic, one.partition), None)


def _time(timestamp: tuple[int, int]) -> dt.datetime | None:
    kind, milliseconds = timestamp
    if kind == kafka.TIMESTAMP_NOT_AVAILABLE:
        return None
    return time_of(milliseconds)
