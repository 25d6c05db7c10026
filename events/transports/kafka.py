"""Kafka, through confluent-kafka (extra `kafka`): an idempotent producer, and explicit commits of offsets.

The key decides the partition. The events of one aggregate stay in order within a topic, and each partition
has one consumer of a group. `manage.py make_topics` or the broker's auto-creation makes the topics.

KAFKA_OPTIONS has librdkafka's own names, except those in `RESERVED`.

When a call fails, librdkafka returns only "timed out" or "transport failure", and passes the reason (a wrong
password, an unknown certificate, a refused connection) to a callback. `Reasons` combines the two.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import threading
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
    Lag,
    Message,
    MessageRefused,
    Received,
    TopicUnavailable,
    time_of,
)

log = structlog.get_logger(__name__)

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
#: Errors after which the broker takes no message of this topic now. A timeout counts, since the topic's
#: leader may be away. If the whole broker is away, the next query of the metadata fails.
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
ASK_SECONDS = 1.0
#: The limit for fetching the first uncommitted message of every partition, to read its time.
FETCH_SECONDS = 2.0
_reading = threading.Lock()
_readers: dict[tuple[int, str, str], Any] = {}
#: By group: when its first uncommitted messages were written, by topic, partition and offset.
_written: dict[str, dict[tuple[str, int, int], float]] = {}


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
        """Forget the last reason. A broker was reached since."""
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


def check_options() -> None:
    """Raise `ImproperlyConfigured` if librdkafka refuses KAFKA_OPTIONS, or if they name a reserved option.

    The clients that try them know no broker and connect to none.
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


class KafkaPublisher(base.BrokerPublisher):
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
        if any(isinstance(result, BrokerAway | TopicUnavailable) for result in results):
            self.close()  # its buffer may have messages that will be published again
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
            return MessageRefused(answer.str())
        if answer.code() in _ABOUT_THE_TOPIC:
            return TopicUnavailable(self._reasons.explain(answer))
        return BrokerAway(self._reasons.explain(answer))

    def _look_up(self, topic: str) -> TopicUnavailable | None:
        """Query an unknown topic. A message to a missing topic would wait for its timeout.

        Raise `BrokerAway`.
        """
        if topic in self._known:
            return None
        try:
            metadata = self._producer.list_topics(topic, timeout=METADATA_SECONDS).topics[topic]
        except kafka.KafkaException as error:
            raise self._away(error) from error
        if metadata.error is not None:
            return TopicUnavailable(metadata.error.str())
        self._known.add(topic)
        return None


class KafkaConsumer(base.BrokerConsumer):
    """A member of a group. It commits offsets up to the first message that is not done.

    If `creates`, it asks a cluster with auto-creation to make missing topics.
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
        batch = []
        for message in self._consume(seconds):
            if (error := message.error()) is not None:
                if error.code() not in _UNREADABLE:
                    raise BrokerAway(self._reasons.explain(error))
                self._skip(message.topic(), error)
                continue
            place = (message.topic(), message.partition())
            self._open[place].add(message.offset())
            self._next[place] = message.offset() + 1
            key = (message.key() or b"").decode("utf-8", base.KEY_ERRORS)
            token = (place, message.offset())
            written_at = _time(message.timestamp())
            batch.append(Received(message.topic(), key, message.value() or b"", token, written_at))
        if batch:
            self._reasons.forget()
        elif self._troubles:
            raise BrokerAway(self._troubles[-1])
        return batch

    def _consume(self, seconds: float) -> list[Any]:
        """Wait for one message, then take more without waiting. `consume` alone would wait for all."""
        first = self._consumer.poll(seconds)
        if first is None:
            return []
        return [first, *self._consumer.consume(BATCH - 1, timeout=0)]

    def _skip(self, topic: str, error: Any) -> None:
        """Log now and then that a topic cannot be read. Skip a missing one, which has no events yet."""
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
        for partition in partitions:
            self._open.pop((partition.topic, partition.partition), None)
            self._next.pop((partition.topic, partition.partition), None)


def _time(timestamp: tuple[int, int]) -> dt.datetime | None:
    kind, milliseconds = timestamp
    if kind == kafka.TIMESTAMP_NOT_AVAILABLE:
        return None
    return time_of(milliseconds)


def consumer_lags(*, topics: Sequence[str], group: str) -> list[Lag]:
    """Return the lag of each topic. Raise `BrokerAway`."""
    with _reading:
        try:
            consumer = _reader(group)
            behind = {topic: _behind(consumer, topic) for topic in topics}
            waiting = [place for places in behind.values() for place, _ in places]
            written_at = _oldest(consumer, waiting, _written.setdefault(group, {}))
        except kafka.KafkaException as error:
            _close_readers()  # the consumer would try to connect many times a second
            raise BrokerAway(str(error)) from error
    now = time.time() * 1000
    return [
        Lag(
            topic,
            sum(count for _, count in places),
            max(0.0, now - min(written_at[topic])) / 1000 if topic in written_at else 0.0,
        )
        for topic, places in behind.items()
    ]


def _reader(group: str) -> Any:
    """Return a consumer that only reads offsets. It does not subscribe, and is no member of the group."""
    here = (os.getpid(), settings.KAFKA_BOOTSTRAP_SERVERS)
    key = (*here, group)
    if key not in _readers:
        if any(key_of_reader[:2] != here for key_of_reader in _readers):
            _close_readers()
        _readers[key] = kafka.Consumer(
            connection()
            | {
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
                "fetch.queue.backoff.ms": 5,
                "fetch.message.max.bytes": 10_000,
            },
            logger=LOGGER,
        )
    return _readers[key]


def _close_readers() -> None:
    for consumer in _readers.values():
        consumer.close()
    _readers.clear()


def _behind(consumer: Any, topic: str) -> list[tuple[Any, int]]:
    """Return the partitions with uncommitted messages: the first one's offset, and their number."""
    metadata = consumer.list_topics(topic, timeout=ASK_SECONDS).topics[topic]
    if metadata.error is not None:
        _check_rights(metadata.error)
        return []  # no producer has written to it yet
    places = [kafka.TopicPartition(topic, partition) for partition in metadata.partitions]
    result = []
    for place in consumer.committed(places, timeout=ASK_SECONDS):
        low, high = consumer.get_watermark_offsets(place, timeout=ASK_SECONDS)
        first = max(place.offset, low)  # the offset is negative if nothing was ever committed
        if high > first:
            result.append((kafka.TopicPartition(topic, place.partition, first), high - first))
    return result


def _oldest(
    consumer: Any, places: list[Any], times: dict[tuple[str, int, int], float]
) -> dict[str, list[float]]:
    """Return the times (epoch milliseconds) of the messages at these places, by topic. `times` keeps them."""
    for gone in times.keys() - {_key(place) for place in places}:
        del times[gone]
    if wanted := [place for place in places if _key(place) not in times]:
        times.update(_fetch_times(consumer, wanted))
    by_topic: dict[str, list[float]] = {}
    for (topic, _, _), milliseconds in times.items():
        by_topic.setdefault(topic, []).append(milliseconds)
    return by_topic


def _fetch_times(consumer: Any, places: list[Any]) -> dict[tuple[str, int, int], float]:
    times: dict[tuple[str, int, int], float] = {}
    missing = {(place.topic, place.partition): _key(place) for place in places}
    consumer.assign(places)
    deadline = time.monotonic() + FETCH_SECONDS
    while missing and (left := deadline - time.monotonic()) > 0:
        message = consumer.poll(left)
        if message is None:
            continue
        if (error := message.error()) is not None:
            _check_rights(error)
            continue
        key = missing.pop((message.topic(), message.partition()), None)
        kind, milliseconds = message.timestamp()
        if key is not None and kind != kafka.TIMESTAMP_NOT_AVAILABLE:
            times[key] = milliseconds
    consumer.unassign()
    return times


def _check_rights(error: Any) -> None:
    """Raise `KafkaException` if the user lacks a right on a topic, which would look like a lag of 0."""
    if error.code() == kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise kafka.KafkaException(error)


def _key(place: Any) -> tuple[str, int, int]:
    return place.topic, place.partition, place.offset
