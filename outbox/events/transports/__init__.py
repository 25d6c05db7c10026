"""The brokers that events go to and come from: Redis Streams, or Kafka. Chosen by EVENT_TRANSPORT.

Called by the relay and the inbox; each transport is a module with a `Publisher` and a `Consumer`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import cast

from django.conf import settings

from outbox.events.transports.base import BrokerAway, Consumer, Message, Publisher, Received, Refused

NAMES = ("redis", "kafka")


def publisher() -> Publisher:
    """This function will make a publisher to the configured broker."""
    module = importlib.import_module(f"outbox.events.transports.{settings.EVENT_TRANSPORT}")
    return cast(Publisher, module.Publisher())


def consumer(*, topics: Sequence[str], group: str, name: str) -> Consumer:
    """This function will make a consumer of `topics` in a group; `name` tells its members apart."""
    module = importlib.import_module(f"outbox.events.transports.{settings.EVENT_TRANSPORT}")
    return cast(Consumer, module.Consumer(topics=topics, group=group, name=name))


__all__ = ["BrokerAway", "Consumer", "Message", "Publisher", "Received", "Refused", "consumer", "publisher"]
