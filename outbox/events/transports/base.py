"""What a broker must do for us, and how it says that it can't."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence


class BrokerAway(RuntimeError):
    """The broker does not answer, or not now: nothing is known of what was under way."""


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """What is published: `key` keeps the messages of one aggregate in order, `value` is the envelope."""

    topic: str
    key: str
    value: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Received:
    """What came in; `token` is the transport's own, for `Consumer.done`."""

    topic: str
    key: str
    value: bytes
    token: object


@dataclasses.dataclass(frozen=True, slots=True)
class Refused:
    """Why the broker will never take one message."""

    reason: str


class Publisher(ABC):
    """Publishes; may be used by one thread."""

    @abstractmethod
    def publish(self, messages: Sequence[Message]) -> list[Refused | None]:
        """This function will publish messages and wait until the broker has them all.

        Answers for each None, or why it was refused for good. Raises `BrokerAway` when that is not known of
        all of them: then some may have been taken.
        """

    @abstractmethod
    def close(self) -> None:
        """This function will let go of the broker."""


class Consumer(ABC):
    """Receives the messages of a group, each at least once; may be used by one thread."""

    @abstractmethod
    def receive(self, *, seconds: float) -> list[Received]:
        """This function will wait up to `seconds` for messages. Raises `BrokerAway`."""

    @abstractmethod
    def done(self, messages: Sequence[Received]) -> None:
        """This function will acknowledge messages: the group gets them no more. Raises `BrokerAway`."""

    @abstractmethod
    def close(self) -> None:
        """This function will leave the group."""
