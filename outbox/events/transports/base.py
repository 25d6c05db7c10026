"""The interface to a broker, and the kinds of its refusals."""

from __future__ import annotations

import dataclasses
import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple


class BrokerAway(RuntimeError):
    """The broker does not answer, or does not take anything now."""


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """What is published: `key` keeps the messages of one aggregate in order, `value` is the envelope.

    `headers` repeat ids of the envelope for those who route and trace without reading it.
    """

    topic: str
    key: str
    value: bytes
    headers: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Received:
    """What came in. `token` is the transport's own, for `Consumer.done`."""

    topic: str
    key: str
    value: bytes
    token: object
    written_at: dt.datetime | None = None  # by the broker's clock, or the producer's; None if unknown


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """Why the broker will never take one message."""

    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class TopicUnavailable:
    """Why the broker does not take messages of this one's topic now, while it may take others."""

    reason: str


class Lag(NamedTuple):
    """Events of one topic that the group has not acknowledged, and the age of the oldest (seconds)."""

    topic: str
    events: int
    seconds: float


def time_of(milliseconds: float) -> dt.datetime | None:
    """Return when a message was written, by the broker's number for it (epoch milliseconds).

    None if that is not a time. Producers choose a stream's ids and may choose Kafka's timestamps.
    """
    try:
        return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
    except (ValueError, OverflowError, OSError):
        return None


#: None: the broker has the message. `BrokerAway`: nobody knows whether it does.
BrokerAnswer = Refused | TopicUnavailable | BrokerAway | None


class Publisher(ABC):
    """Publishes; for use by one thread."""

    @abstractmethod
    def check(self) -> None:
        """Raise `BrokerAway` unless the broker answers."""

    @abstractmethod
    def publish(self, messages: Sequence[Message]) -> list[BrokerAnswer]:
        """Publish messages, wait for the broker, and return its answer to each.

        Raises `BrokerAway` when nothing is known of any of them: then some may have been taken.
        """

    @abstractmethod
    def close(self) -> None:
        """Disconnect."""


class Consumer(ABC):
    """Receives the messages of a group, each at least once and in order for each key; for one thread."""

    @abstractmethod
    def receive(self, *, seconds: float) -> list[Received]:
        """Wait up to `seconds` for messages. Raises `BrokerAway`."""

    @abstractmethod
    def done(self, messages: Sequence[Received]) -> None:
        """Acknowledge messages: the group does not get them again. Raises `BrokerAway`."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group; what was not acknowledged is for the others."""
