"""What a drain needs of an app, and what it says of a run."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from outbox.delivery.gate.gate import Capacity
from outbox.delivery.rows.deliverable import Deliverable
from outbox.delivery.rows.outcomes import Outcome
from outbox.delivery.rows.settlements import Transition

Sent = TypeVar("Sent", bound=Deliverable, contravariant=True)


class Sender(Protocol[Sent]):
    """What an app brings."""

    def send(self, row: Sent, /) -> Outcome:
        """Try to deliver a row, in a thread of the pool. Ask no provider unless `row.is_sendable()`."""

    def screen(self, rows: Sequence[Sent], /) -> Mapping[uuid.UUID, Outcome]:
        """Name the outcome of claimed rows that must not be sent, and set the `charge` of the others."""

    def capacity(self) -> Capacity:
        """Return how many rows are worth claiming now."""

    def changed(self, changes: Sequence[Transition], /) -> None:
        """Log committed changes of state."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """`send_timeout_seconds` bounds one send: none starts with less than that left of its lease."""

    concurrency: int
    lease_seconds: float
    send_timeout_seconds: float


@dataclasses.dataclass(slots=True)
class Drained:
    """What a run did. `pause_seconds`: until asking again may help; `has_more`: rows were left over.

    `next_due_seconds`: until the first waiting row that this run knows of is due, None if it knows of none.
    """

    claimed: int = 0
    settled: int = 0
    pause_seconds: float = 0.0
    has_more: bool = False
    next_due_seconds: float | None = None
