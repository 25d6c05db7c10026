"""The topics of the apps: those that they publish, and the handlers of those that they consume.

Apps hand them in when they are ready, because this package is below the apps.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from events.consuming.envelope import Envelope
from runtime.database.row_change import RowToRead
from runtime.database.statement import StatementPart, Written


class Change(Protocol):
    """What an event changes, not yet written."""

    def write(self, *, inserts: Sequence[StatementPart]) -> Written:
        """Write the change and `inserts` in one statement, or nothing if the row is no longer as read."""

    def seen_after(self, written: Written) -> Any:
        """Return the row as the change left it, as `RowToRead.make` would."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RowHandler:
    """Handles a topic whose events change one row each, or make it.

    `row_id` returns the row's id, or None if the event names none. It raises nothing. `decide` gets the
    event, the row (None without one) and the database's time. It writes nothing, and may raise `Rejected`.
    """

    row: RowToRead
    row_id: Callable[[Envelope], uuid.UUID | None]
    decide: Callable[[Envelope, Any, dt.datetime], Change]


#: A function does what the event says, in a transaction that also records the event. It may raise `Rejected`.
Handler = RowHandler | Callable[[Envelope], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """The consumer `name` with its handlers by topic. `read` reads the settings, which choose the topics."""

    name: str
    read: Callable[[], dict[str, Handler]]
    own_topics: frozenset[str] = frozenset()  # those to which orderpost publishes, too


#: The handlers of the one consumer. The app that has them sets it.
subscription = Subscription(name="", read=dict)
_published: list[Callable[[], Iterable[str]]] = []


def publish_topics(read: Callable[[], Iterable[str]]) -> None:
    """Register a function that returns the topics that an app publishes."""
    _published.append(read)


def published_topics() -> list[str]:
    return [topic for read in _published for topic in read()]
