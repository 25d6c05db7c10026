"""The interface to a broker, and the kinds of its answers."""

from __future__ import annotations

import dataclasses
import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

#: The most bytes of an event, out and in. Kafka's default limit.
LARGEST = 1_000_000
#: How to decode a received key, so that two keys of any bytes are two keys.
KEY_ERRORS = "surrogateescape"


class BrokerAway(RuntimeError):
    """The broker does not answer, or takes no message at all now."""


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """An outgoing message. `key` keeps the messages of one aggregate in order. `value` is the envelope.

    `headers` repeat ids of the envelope, for tools that route and trace without reading it.
    """

    topic: str
    key: str
    value: bytes
    headers: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Received:
    """A received message. `BrokerConsumer.done` uses `token`, whose type depends on the transport."""

    topic: str
    key: str
    value: bytes
    token: object
    written_at: dt.datetime | None = None  # by the broker's clock, or the producer's; None if unknown


@dataclasses.dataclass(frozen=True, slots=True)
class MessageRefused:
    """Why the broker will never take one message."""

    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class TopicUnavailable:
    """Why the broker takes no messages of this topic now, although it may take others."""

    reason: str


class Lag(NamedTuple):
    """The number of a topic's events without acknowledgement, and the age of the oldest (seconds)."""

    topic: str
    events: int
    seconds: float


def time_of(milliseconds: float) -> dt.datetime | None:
    """Return when a message was written, from the broker's number for it (epoch milliseconds).

    Return None if the number is no valid time: producers can choose a stream's ids and Kafka's timestamps.
    """
    try:
        return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
    except (ValueError, OverflowError, OSError):
        return None


#: None means that the broker has the message. After `BrokerAway`, it may have it or not.
BrokerAnswer = MessageRefused | TopicUnavailable | BrokerAway | None


class BrokerPublisher(ABC):
    """Publish messages. Only one thread may use it."""

    @abstractmethod
    def check(self) -> None:
        """Raise `BrokerAway` unless the broker answers."""

    @abstractmethod
    def publish(self, messages: Sequence[Message]) -> list[BrokerAnswer]:
        """Publish messages, wait for the broker, and return its answer to each.

        Raise `BrokerAway` if the broker answered to none. It may still have taken some of them.
        """

    @abstractmethod
    def close(self) -> None:
        """Disconnect from the broker."""


class BrokerConsumer(ABC):
    """Receive the messages of a group at least once, in order for each key. Only one thread may use it."""

    @abstractmethod
    def receive(self, *, seconds: float) -> list[Received]:
        """Wait up to `seconds` for messages. Raise `BrokerAway`."""

    @abstractmethod
    def done(self, messages: Sequence[Received]) -> None:
        """Acknowledge messages, so that the group does not get them again. Raise `BrokerAway`."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group. Other consumers get the messages without an acknowledgement."""
