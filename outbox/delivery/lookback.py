"""How far back a claim has to read the index of due rows.

Rows that were sent leave dead entries in that index. No vacuum can remove them while a session holds an older
snapshot (a dump, a forgotten transaction), and each claim steps over all of them. So a drain remembers how
long the last row that it took had been due, and starts its next claims there.

Such a claim can miss a row that got its place in the queue late: a transaction that took long to commit, or a
claim that another process gave back. A claim of everything finds them. One happens at each poll, after each
row that this process gave back, and otherwise so rarely that these claims take a twentieth of the time.
"""

from __future__ import annotations

import math

#: Look back so much further than to the last row that was taken: for transactions that commit late.
SLACK_SECONDS = 2.0
#: The pause after a claim of everything, in multiples of the time that it took, and in seconds at most.
PAUSE_FACTOR, LONGEST_PAUSE_SECONDS = 20.0, 30.0


class Lookback:
    """One drain's memory. Times are seconds of the process's monotonic clock."""

    def __init__(self) -> None:
        self._taken_until = -math.inf  # what was due before this moment was taken
        self._whole_at = -math.inf  # when to read everything again

    def seconds(self, *, now: float) -> float | None:
        """Return how many seconds back a claim at `now` has to read; None: to the very first row."""
        if now >= self._whole_at:
            return None
        return now - self._taken_until + SLACK_SECONDS

    def forget(self) -> None:
        """Have the next claim read everything."""
        self._whole_at = -math.inf

    def note_claim(self, *, is_whole: bool, began_at: float, ended_at: float, age_seconds: float) -> None:
        """Note a claim that took all rows due for longer than `age_seconds`; `is_whole`: it read all."""
        self._taken_until = began_at - age_seconds
        if is_whole:
            self._whole_at = ended_at + min(LONGEST_PAUSE_SECONDS, PAUSE_FACTOR * (ended_at - began_at))
