"""Tell whether this machine is too busy for a time-out to prove anything about another server.

A thread sleeps for a moment again and again, and adds up how late it woke. It also wakes late if this
process was frozen, or its interpreter was busy.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque

TICK_SECONDS = 0.1
#: The machine is overloaded if the thread woke so late within so many seconds.
LATE_SECONDS, WITHIN_SECONDS = 1.0, 10.0
#: A command that has just started watches for so long before it tells.
LEAST_SECONDS = 2.0


class Lateness:
    """The lateness of the thread in the last `WITHIN_SECONDS`."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._began = 0.0
        self._ticks: deque[tuple[float, float]] = deque()  # when it woke, and how late

    def watch(self) -> None:
        """Start the thread, unless it runs. Call this after a fork."""
        with self._lock:
            if self._thread is None:
                self._began = time.monotonic()
                self._thread = threading.Thread(target=self._run, name="lateness", daemon=True)
                self._thread.start()

    def is_overloaded(self) -> bool:
        """Return whether the thread woke late by over a second within ten. Watch a moment if it is new."""
        self.watch()
        time.sleep(max(0.0, LEAST_SECONDS - (time.monotonic() - self._began)))
        now = time.monotonic()
        with self._lock:
            late = sum(late for at, late in self._ticks if at > now - WITHIN_SECONDS)
        return late > LATE_SECONDS

    def note(self, late: float) -> None:
        """Add how late the thread woke now."""
        now = time.monotonic()
        with self._lock:
            self._ticks.append((now, late))
            while self._ticks[0][0] < now - WITHIN_SECONDS:
                self._ticks.popleft()

    def _run(self) -> None:
        while True:
            due = time.monotonic() + TICK_SECONDS
            time.sleep(TICK_SECONDS)
            self.note(max(0.0, time.monotonic() - due))


lateness = Lateness()
