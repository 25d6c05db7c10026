"""Kafka, through confluent-kafka (extra `kafka`): an idempotent producer, offsets committed by hand.

The key decides the partition, so the events of one aggregate stay in order within a topic. Topics are made
by the broker's auto-creation or by whoever runs it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, cast

import confluent_kafka as kafka
from django.conf import settings

from outbox.events.transports import base
from outbox.events.transports.base import BrokerAway, Message, Received, Refused

DELIVERY_SECONDS = 10.0
#: Answers about one message, not about the broker.
_ABOUT_THE_MESSAGE = frozenset(
    {
        kafka.KafkaError.MSG_SIZE_TOO_LARGE,
        kafka.KafkaError.INVALID_MSG,
        kafka.KafkaError.INVALID_MSG_SIZE,
        kafka.KafkaError.TOPIC_EXCEPTION,
        kafka.KafkaError.INVALID_RECORD,
    }
)
BATCH = 100


class Publisher(base.Publisher):
    """One producer, made anew after whatever it could not deliver."""

    def __init__(self) -> None:
        self._producer: Any = None

    def publish(self, messages: Sequence[Message]) -> list[Refused | None]:
        """See the base class."""
        if self._producer is None:
            self._producer = kafka.Producer(
                {
                    "bootstrap.servers": settings.KAFKA_BOOTSTRAP_SERVERS,
                    "enable.idempotence": True,
                    "acks": "all",
                    "linger.ms": 5,
                    "delivery.timeout.ms": int(DELIVERY_SECONDS * 1000),
                    "message.max.bytes": 1_500_000,
                }
            )
        answers: list[object] = [BrokerAway("no answer")] * len(messages)

        def delivered(number: int) -> Any:
            def keep(error: Any, _: Any) -> None:
                answers[number] = error

            return keep

        for number, message in enumerate(messages):
            try:
                self._producer.produce(
                    message.topic, message.value, message.key, on_delivery=delivered(number)
                )
            except kafka.KafkaException as error:
                answers[number] = error.args[0]
            except BufferError:
                break  # what is not in the buffer counts as not delivered
        self._producer.flush(DELIVERY_SECONDS + 1)
        results = [self._read(answer) for answer in answers]
        if trouble := next((one for one in results if isinstance(one, BrokerAway)), None):
            self.close()  # its buffer may hold what is published again
            raise trouble
        return cast("list[Refused | None]", results)

    def _read(self, answer: object) -> Refused | BrokerAway | None:
        if answer is None:
            return None
        if isinstance(answer, kafka.KafkaError):
            about = answer.code() in _ABOUT_THE_MESSAGE
            return Refused(answer.str()) if about else BrokerAway(answer.str())
        return cast(BrokerAway, answer)

    def close(self) -> None:
        """Drop the producer with all that it has not sent."""
        if self._producer is not None:
            self._producer.purge()
            self._producer = None


class Consumer(base.Consumer):
    """A group's member. Offsets are committed up to the first message that is not done."""

    def __init__(self, *, topics: Sequence[str], group: str, name: str) -> None:
        self._open: dict[tuple[str, int], set[int]] = defaultdict(set)
        self._next: dict[tuple[str, int], int] = {}
        self._troubles: list[str] = []
        self._consumer = kafka.Consumer(
            {
                "bootstrap.servers": settings.KAFKA_BOOTSTRAP_SERVERS,
                "group.id": group,
                "client.id": name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "allow.auto.create.topics": True,
                "topic.metadata.refresh.interval.ms": 5000,
                "error_cb": self._error,
            }
        )
        self._consumer.subscribe(list(topics), on_revoke=self._revoked)

    def receive(self, *, seconds: float) -> list[Received]:
        """What came within the time."""
        self._troubles.clear()
        found = []
        for message in cast("list[Any]", self._consumer.consume(BATCH, timeout=seconds)):
            if (error := message.error()) is not None:
                if error.code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    continue  # nobody has written to it yet
                raise BrokerAway(error.str())
            place = (message.topic(), message.partition())
            self._open[place].add(message.offset())
            self._next[place] = message.offset() + 1
            key = (message.key() or b"").decode("utf-8", "replace")
            found.append(Received(message.topic(), key, message.value() or b"", (place, message.offset())))
        if self._troubles and not found:
            raise BrokerAway(self._troubles[-1])
        return found

    def done(self, messages: Sequence[Received]) -> None:
        """Commit as far as nothing is left open."""
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
            raise BrokerAway(str(error)) from error

    def close(self) -> None:
        """Leave the group at once."""
        self._consumer.close()

    def _error(self, error: Any) -> None:
        if error.code() == kafka.KafkaError._ALL_BROKERS_DOWN:
            self._troubles.append(error.str())

    def _revoked(self, _: Any, partitions: Sequence[Any]) -> None:
        for one in partitions:
            self._open.pop((one.topic, one.partition), None)
            self._next.pop((one.topic, one.partition), None)
