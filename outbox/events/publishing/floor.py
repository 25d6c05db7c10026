"""Up to which position every event is published, so that the relay's queries can start there.

An event that was published leaves a dead entry in the index of unpublished ones. No vacuum can remove it
while a session holds an older snapshot, and each query steps over all of them.

Events get their positions before their transactions commit. So a position that is published is only a
candidate: an earlier one may still come from a transaction that runs. Such a transaction has its id already,
since an event is never the first thing that it writes. Once all transactions that ran when the candidate was
noted have ended, one more query from the old floor proves that nothing was left. The candidate is then
the floor. Skipping an event would be worse than late: a later one of its aggregate could overtake it.
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
    next_transaction: int  # those that run have ids below this


class Floor:
    """The memory of one relay."""

    def __init__(self, *, using: str) -> None:
        self.using = using
        self.reset()

    def reset(self) -> None:
        """Start anew: something is held back, or other shards are ours now."""
        self.position = 0
        self._published = 0
        self._candidate: _Candidate | None = None
        self._ripe = False
        self._ticked_at = 0.0

    def tick(self) -> None:
        """Before a query: note a candidate, or find that the transactions of its time have ended."""
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
        """Note a query from the floor, which found the event at the position `first`, or none."""
        if self._ripe and self._candidate is not None:
            if first is None or first > self._candidate.position:
                self.position = self._candidate.position + 1
            self._candidate, self._ripe = None, False

    def published(self, *, last: int) -> None:
        """Note that every event which the queries found up to this position is published."""
        self._published = max(self._published, last)
