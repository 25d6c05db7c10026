"""Slots of the shared rate, taken from Redis some at a time, for the sending threads of one process.

A trip to Redis costs more than anything else that a send asks of the gate. A slot is due at its own moment of
the rate. It lapses `LIFE_SECONDS` later, so that sends which come late do not crowd into another second. The
breakers are known as of the trip, so an opening or a pause in another process stops this one after at most
`TAKE` more sends; one in this process stops it at once.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable

from outbox.delivery.gate.shared_state import SharedState

TAKE = 10
LIFE_SECONDS = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """One send that the rate allows at `due_at`, and not after `lapses_at`; both by the clock of `Slots`.

    It is not the caller's unless it is taken (`is_taken`): it was too far away.
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
        #: Never more than the rate lets out within a slot's life: nobody waits long for slots of another.
        self._size = min(TAKE, max(1, int(shared.rate * LIFE_SECONDS))) if shared.rate else TAKE
        self._lock = threading.Lock()
        self._free: deque[Slot] = deque()
        self._ahead = 0.0  # Redis' clock minus ours
        self._due = ""  # the rate's own time after the last trip

    def take_slot(self, *, patience_seconds: float) -> Slot:
        """Return the next slot. One that is over `patience_seconds` away is not taken."""
        with self._lock:
            now = self._clock()
            while self._free and now > self._free[0].lapses_at:
                self._free.popleft()
            if not self._free:
                found = self._shared.refresh(patience_seconds=patience_seconds, count=self._size)
                # Redis read its clock before this moment, so that no slot is used too early.
                now = self._clock()
                self._ahead, self._due = found.now - now, found.due
                if found.taken < 1:
                    return Slot(now + found.wait_seconds, is_taken=False)
                # One that was free before is due now.
                self._free.extend(
                    Slot(now + max(0.0, found.slot_wait_seconds(n))) for n in range(found.taken)
                )
            if self._free[0].due_at - now > patience_seconds:
                return dataclasses.replace(self._free[0], is_taken=False)
            return self._free.popleft()

    def redis_time(self) -> float:
        """Return the time by Redis' clock, as of the last trip."""
        return self._clock() + self._ahead

    def give_back(self) -> None:
        """Return unused slots to the rate, unless another process has taken later ones: then they lapse."""
        with self._lock:
            count = len(self._free)
            self._free.clear()
            if count and self._due:
                self._shared.give_back(count=count, due=self._due)
