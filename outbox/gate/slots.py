"""Slots of the shared rate, taken from Redis several at a time, for the sending threads of one process.

A round trip to Redis is the most expensive part of the gate. Each slot is due at its own time, and lapses
`LIFE_SECONDS` later, so that late sends do not crowd into another second. The breakers are as old as the last
round trip, so an opening or a pause in another process stops this one after at most `TAKE` more sends. An
opening or a pause in this process stops it at once.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable

from outbox.gate.shared_state import SharedState

TAKE = 10
LIFE_SECONDS = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """One send that the rate allows from `due_at` to `lapses_at`, by the clock of `Slots`.

    The caller may use it only if `is_taken`. Otherwise it was too far away.
    """

    due_at: float
    is_taken: bool = True

    @property
    def lapses_at(self) -> float:
        return self.due_at + LIFE_SECONDS


class Slots:
    """The slots that one process has taken and not used yet. `clock` is monotonic, in seconds."""

    def __init__(self, shared: SharedState, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._shared, self._clock = shared, clock
        #: At most the slots of `LIFE_SECONDS`, so that no process waits long for slots of another.
        self._size = min(TAKE, max(1, int(shared.rate * LIFE_SECONDS))) if shared.rate else TAKE
        self._lock = threading.Lock()
        self._free: deque[Slot] = deque()
        self._ahead = 0.0  # Redis' clock minus ours
        self._due = ""  # the rate's time after the last round trip

    def take_slot(self, *, patience_seconds: float) -> Slot:
        """Return the next slot. Do not take it if it is over `patience_seconds` away."""
        with self._lock:
            now = self._clock()
            while self._free and now > self._free[0].lapses_at:
                self._free.popleft()
            if not self._free:
                found = self._shared.refresh(patience_seconds=patience_seconds, count=self._size)
                # Redis read its clock before this moment, so no slot is used too early.
                now = self._clock()
                self._ahead, self._due = found.now - now, found.due
                if found.taken < 1:
                    return Slot(now + found.wait_seconds, is_taken=False)
                # A slot that was free before is due now.
                self._free.extend(
                    Slot(now + max(0.0, found.slot_wait_seconds(n))) for n in range(found.taken)
                )
            if self._free[0].due_at - now > patience_seconds:
                return dataclasses.replace(self._free[0], is_taken=False)
            return self._free.popleft()

    def redis_time(self) -> float:
        """Return the time by Redis' clock, computed from the last round trip."""
        return self._clock() + self._ahead

    def give_back(self) -> None:
        """Return unused slots to the rate. They lapse if another process has taken later ones."""
        with self._lock:
            count = len(self._free)
            self._free.clear()
            if count and self._due:
                self._shared.give_back(count=count, due=self._due)
