"""The outcomes that a drain has not written yet."""

from __future__ import annotations

import time

from outbox.delivery.changes import Settlement
from outbox.delivery.deliverable import Deliverable
from outbox.delivery.outcomes import Outcome

#: Outcomes are written when there are so many, or after so long, so that a crash causes few duplicates.
SETTLE_ROWS = 20
SETTLE_SECONDS = 0.1


class Unsettled:
    """The outcomes that wait, and when they are due to be written (monotonic)."""

    def __init__(self) -> None:
        self._settlements: list[Settlement] = []
        self._due_at = 0.0

    def __len__(self) -> int:
        return len(self._settlements)

    def add(self, row: Deliverable, outcome: Outcome) -> None:
        """Have an outcome written with those that wait."""
        if not self._settlements:
            self._due_at = time.monotonic() + SETTLE_SECONDS
        self._settlements.append(Settlement(row.id, outcome, row.claim_token, row.charge))

    def take(self, *, at_once: bool) -> list[Settlement]:
        """Hand over all outcomes if they are due, or `at_once`; else none."""
        if not (at_once or len(self) >= SETTLE_ROWS or time.monotonic() > self._due_at):
            return []
        taken, self._settlements = self._settlements, []
        return taken
