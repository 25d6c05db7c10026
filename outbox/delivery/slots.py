"""Slots of the shared rate, taken from Redis some at a time, for the sending threads of one process.

A trip to Redis costs more than anything else that a send asks of the gate. A slot has its own moment in the
rate: whoever uses it later than `LIFE_SECONDS` after that has to take another. The breakers are known as of
the trip, so an opening or a pause in another process stops this one after at most `TAKE` more sends; one in
this process stops it at once.
"""

from __future__ import annotations

import threading
import time
from collections import deque

from outbox.delivery.shared_state import SharedState

TAKE = 10
LIFE_SECONDS = 0.05


class Slots:
    """What one process has taken and not used yet."""

    def __init__(self, shared: SharedState) -> None:
        self._shared = shared
        #: Never more than the rate lets out within a slot's life: nobody waits long for slots of another.
        self._size = min(TAKE, max(1, int(shared.rate * LIFE_SECONDS))) if shared.rate else TAKE
        self._lock = threading.Lock()
        self._free: deque[float] = deque()  # when each may be used (monotonic)
        self._taken_at = self._ahead = 0.0  # monotonic, and Redis' clock minus that
        self._due = ""  # the rate's own time after the last trip

    def take(self, *, patience: float) -> tuple[float, float]:
        """Return the time by Redis' clock and how long to wait for the slot, both in seconds.

        A slot that is over `patience` seconds away is not taken.
        """
        with self._lock:
            now = time.monotonic()
            while self._free and now > max(self._free[0], self._taken_at) + LIFE_SECONDS:
                self._free.popleft()
            if not self._free:
                look = self._shared.look(patience=patience, count=self._size)
                now = self._taken_at = time.monotonic()
                self._ahead, self._due = look.now - now, look.due
                if look.wait > patience:
                    return look.now, look.wait
                self._free.extend(now + look.wait_for(number) for number in range(look.taken))
            wait = max(0.0, self._free[0] - now)
            if wait <= patience:
                self._free.popleft()
            return now + self._ahead, wait

    def give_back(self) -> None:
        """Return unused slots to the rate, unless another process has taken later ones: then they lapse."""
        with self._lock:
            count = len(self._free)
            self._free.clear()
            if count and self._due:
                self._shared.give_back(count=count, due=self._due)
