"""Decide how far back a claim has to read the index of due rows.

Sent rows leave dead entries in that index. Vacuum cannot remove them while a session holds an older snapshot
(a dump, a forgotten transaction), so each claim steps over all of them. A drain therefore remembers how long
its last claimed row had been due, and starts its next claims there.

Such a claim can miss a row that got its place in the queue late, because its transaction took long to commit
or because another process gave it back. A claim of everything finds such rows. It happens at each poll, after
each row that this process gave back, and otherwise so rarely that these claims take a twentieth of the time.
"""

from __future__ import annotations

import math

#: Look back so much further than to the last claimed row, because transactions may commit late.
SLACK_SECONDS = 2.0
#: The pause after a claim of everything, as a multiple of the claim's duration, and its maximum in seconds.
PAUSE_FACTOR, LONGEST_PAUSE_SECONDS = 20.0, 30.0


class Lookback:
    """One drain's memory. Times are seconds of the process's monotonic clock."""

    def __init__(self) -> None:
        self._taken_until = -math.inf  # rows that were due before this moment were claimed
        self._whole_at = -math.inf  # when to read everything again

    def seconds(self, *, now: float) -> float | None:
        """Return how many seconds back a claim at `now` has to read, or None for everything."""
        if now >= self._whole_at:
            return None
        return now - self._taken_until + SLACK_SECONDS

    def forget(self) -> None:
        """Make the next claim read everything."""
        self._whole_at = -math.inf

    def note_claim(self, *, is_whole: bool, began_at: float, ended_at: float, age_seconds: float) -> None:
        """Note a claim of all rows due for longer than `age_seconds`. If `is_whole`, it read everything."""
        self._taken_until = began_at - age_seconds
        if is_whole:
            self._whole_at = ended_at + min(LONGEST_PAUSE_SECONDS, PAUSE_FACTOR * (ended_at - began_at))
