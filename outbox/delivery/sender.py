"""The protocol that a drain needs from an app, its limits, and the report of a run."""

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
    """An app's part of a drain."""

    def send(self, row: Sent, /) -> Outcome:
        """Try to deliver a row in a thread of the pool. Call no provider unless `row.is_sendable()`."""

    def screen(self, rows: Sequence[Sent], /) -> Mapping[uuid.UUID, Outcome]:
        """Return the outcomes of claimed rows that must not be sent, and set the `charge` of the others."""

    def capacity(self) -> Capacity:
        """Return how many rows are worth claiming now."""

    def changed(self, changes: Sequence[Transition], /) -> None:
        """Log committed changes of state."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """`send_timeout_seconds` bounds one send, so none begins with less than that left of its lease."""

    concurrency: int
    lease_seconds: float
    send_timeout_seconds: float


@dataclasses.dataclass(slots=True)
class Drained:
    """The report of a run.

    `pause_seconds` is how long to wait before the next run. If `has_more`, due rows are left. After
    `next_due_seconds`, the first waiting row that the run knows of is due. It is None if the run knows of
    none.
    """

    claimed: int = 0
    settled: int = 0
    pause_seconds: float = 0.0
    has_more: bool = False
    next_due_seconds: float | None = None
