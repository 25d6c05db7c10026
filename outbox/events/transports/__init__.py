"""The brokers that events go to and come from: Redis Streams, or Kafka. Chosen by EVENT_TRANSPORT.

Each transport is a module with a `Publisher` for the relay and a `Consumer` for `consume_events`.
"""

from __future__ import annotations

import importlib
import os
import secrets
import socket
from collections.abc import Sequence
from typing import cast

from django.conf import settings

from outbox.events.transports.base import (
    BrokerAnswer,
    BrokerAway,
    Consumer,
    Message,
    Publisher,
    Received,
    Refused,
    TopicUnavailable,
)


def publisher() -> Publisher:
    """Make a publisher to the configured broker."""
    module = importlib.import_module(f"outbox.events.transports.{settings.EVENT_TRANSPORT}")
    return cast(Publisher, module.Publisher())


def consumer(*, topics: Sequence[str], group: str, name: str) -> Consumer:
    """Make a consumer of `topics` in a group; `name` must be this process's own."""
    module = importlib.import_module(f"outbox.events.transports.{settings.EVENT_TRANSPORT}")
    return cast(Consumer, module.Consumer(topics=topics, group=group, name=name))


def member_name() -> str:
    """Return a consumer's name of its own: containers may share a host name and a process id."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


__all__ = [
    "BrokerAnswer",
    "BrokerAway",
    "Consumer",
    "Message",
    "Publisher",
    "Received",
    "Refused",
    "TopicUnavailable",
    "consumer",
    "member_name",
    "publisher",
]
