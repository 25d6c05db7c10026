"""The topics of the apps: those that they publish, and the handlers of those that they consume.

This package does not import the apps above it. Each app registers its topics here in its `ready()`.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable

from events.consuming.envelope import Envelope

#: Applies an event in the caller's transaction, which also records it. May raise `Rejected`.
Handler = Callable[[Envelope], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The consumer `name` with its handlers by topic. `read` reads the settings, which choose the topics.

    `order_of` returns the order that an event is about, or None if it names none.
    """

    name: str
    read: Callable[[], dict[str, Handler]]
    order_of: Callable[[Envelope], uuid.UUID | None]
    published_topics: frozenset[str] = frozenset()  # those to which orderpost publishes, too


_subscriptions: list[Subscription] = []
_published: list[Callable[[], Iterable[str]]] = []


def register_subscription(subscription: Subscription) -> None:
    """Register the handlers of the one consumer."""
    _subscriptions[:] = [subscription]


def subscription() -> Subscription:
    return _subscriptions[0]


def register_topics(read: Callable[[], Iterable[str]]) -> None:
    """Register a function that returns the topics that an app publishes."""
    _published.append(read)


def published_topics() -> list[str]:
    return [topic for read in _published for topic in read()]
