"""The brokers: Redis Streams or Kafka, as EVENT_TRANSPORT says.

Each has a module with a publisher, a consumer, and `consumer_lags`.
"""

from __future__ import annotations

import importlib
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import cast

from django.conf import settings

from events.transports.base import (
    BrokerAnswer,
    BrokerAway,
    BrokerConsumer,
    BrokerPublisher,
    Lag,
    Message,
    MessageRefused,
    Received,
    TopicUnavailable,
)


def publisher() -> BrokerPublisher:
    if settings.EVENT_TRANSPORT == "kafka":
        from events.transports.kafka import KafkaPublisher  # confluent-kafka may not be installed

        return KafkaPublisher()
    from events.transports.redis import RedisPublisher

    return RedisPublisher()


def consumer(*, topics: Sequence[str], group: str, name: str) -> BrokerConsumer:
    """Make a consumer of `topics` in a group. No other process may have its `name`."""
    if settings.EVENT_TRANSPORT == "kafka":
        from events.transports.kafka import KafkaConsumer

        return KafkaConsumer(topics=topics, group=group, name=name)
    from events.transports.redis import RedisConsumer

    return RedisConsumer(topics=topics, group=group, name=name)


def consumer_lags(*, topics: Sequence[str], group: str, transport: str = "") -> list[Lag]:
    """Return how far a group is behind, also while no consumer runs. Raise `BrokerAway`.

    `transport` is `redis` or `kafka`, by default EVENT_TRANSPORT.
    """
    name = transport or settings.EVENT_TRANSPORT
    module = importlib.import_module(f"events.transports.{name}")
    return cast("Callable[..., list[Lag]]", module.consumer_lags)(topics=topics, group=group)


def member_name() -> str:
    """Return a unique name for a consumer. Containers may share their host name and process id."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


__all__ = [
    "BrokerAnswer",
    "BrokerAway",
    "BrokerConsumer",
    "BrokerPublisher",
    "Lag",
    "Message",
    "MessageRefused",
    "Received",
    "TopicUnavailable",
    "consumer",
    "consumer_lags",
    "member_name",
    "publisher",
]
