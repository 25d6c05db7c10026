"""Compute how far a group is behind on Kafka, from committed offsets and the ends of the partitions."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import confluent_kafka as kafka
from django.conf import settings

from events.transports.base import BrokerAway, Lag
from events.transports.kafka_connection import LOGGER, connection

ASK_SECONDS = 1.0
#: The limit for fetching the first uncommitted message of every partition, to read its time.
FETCH_SECONDS = 2.0
_asking = threading.Lock()
_consumers: dict[tuple[int, str, str], Any] = {}
#: By group: when its first uncommitted messages were written, by topic, partition and offset.
_times: dict[str, dict[tuple[str, int, int], float]] = {}


def consumer_lags(*, topics: Sequence[str], group: str) -> list[Lag]:
    """Return the lag of each topic. Raise `BrokerAway`."""
    with _asking:
        try:
            consumer = _consumer(group)
            behind = {topic: _behind(consumer, topic) for topic in topics}
            waiting = [place for places in behind.values() for place, _ in places]
            written_at = _oldest(consumer, waiting, _times.setdefault(group, {}))
        except kafka.KafkaException as error:
            _forget()  # the consumer would try to connect many times a second
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


def _consumer(group: str) -> Any:
    """Return a consumer that only reads offsets. It does not subscribe, so it does not join the group."""
    here = (os.getpid(), settings.KAFKA_BOOTSTRAP_SERVERS)
    key = (*here, group)
    if key not in _consumers:
        if any(known[:2] != here for known in _consumers):
            _forget()
        _consumers[key] = kafka.Consumer(
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
    return _consumers[key]


def _forget() -> None:
    for consumer in _consumers.values():
        consumer.close()
    _consumers.clear()


def _behind(consumer: Any, topic: str) -> list[tuple[Any, int]]:
    """Return the partitions with uncommitted messages: the first one's offset, and their number."""
    found = consumer.list_topics(topic, timeout=ASK_SECONDS).topics[topic]
    if found.error is not None:
        _check_rights(found.error)
        return []  # no producer has written to it yet
    places = [kafka.TopicPartition(topic, partition) for partition in found.partitions]
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
    found: dict[str, list[float]] = {}
    for (topic, _, _), milliseconds in times.items():
        found.setdefault(topic, []).append(milliseconds)
    return found


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
    """Raise `KafkaException` if the user lacks a right on a topic, because a lag of 0 would hide this."""
    if error.code() == kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise kafka.KafkaException(error)


def _key(place: Any) -> tuple[str, int, int]:
    return place.topic, place.partition, place.offset
