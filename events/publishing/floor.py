"""Find the position up to which every event is published, where the relay's queries can start.

A published event leaves a dead entry in the index of unpublished events. While any session holds an older
snapshot, vacuum cannot remove it, and each query would step over all of them.

An event gets its position before its transaction commits, so there may be earlier positions in transactions
that still run. A published position is therefore only a candidate. Transactions that run when it is noted
have an id by then (an event is never their first write). Once they have all finished, one more query from the
old floor proves that no earlier event is left, and the candidate becomes the floor. The caution is worth it:
a skipped event could be overtaken by a later one of its aggregate.
"""

from __future__ import annotations

import dataclasses
import time

from django.db import connections

#: Between two queries of the running transactions.
TICK_SECONDS = 0.25


@dataclasses.dataclass(frozen=True, slots=True)
class _Candidate:
    position: int
    next_transaction: int  # running transactions have ids below this


class Floor:
    """The memory of one relay."""

    def __init__(self, *, using: str) -> None:
        self.using = using
        self.reset()

    def reset(self) -> None:
        """Start again from 0: events are held back, or the shards have changed."""
        self.position = 0
        self._published = 0
        self._candidate: _Candidate | None = None
        self._ripe = False
        self._ticked_at = 0.0

    def tick(self) -> None:
        """Note a candidate, or find that the transactions of its time have finished. Call before a query."""
        now = time.monotonic()
        if self._published <= self.position or now - self._ticked_at < TICK_SECONDS:
            return
        self._ticked_at = now
        with connections[self.using].cursor() as cursor:
            cursor.execute(
                "SELECT pg_snapshot_xmin(now)::text::bigint, pg_snapshot_xmax(now)::text::bigint"
                " FROM pg_current_snapshot() AS now"
            )
            oldest, following = cursor.fetchone()
        if self._candidate is None:
            self._candidate = _Candidate(self._published, following)
        elif oldest >= self._candidate.next_transaction:
            self._ripe = True

    def note_first(self, *, first: int | None) -> None:
        """Note a query from the floor. `first` is the position of the first event that it found, if any."""
        if self._ripe and self._candidate is not None:
            if first is None or first > self._candidate.position:
                self.position = self._candidate.position + 1
            self._candidate, self._ripe = None, False

    def published(self, *, last: int) -> None:
        """Note that every event that the queries found up to `last` is published."""
        self._published = max(self._published, last)
