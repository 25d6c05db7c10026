"""Slots for the requests that a process works on at a time, and the queue of the requests that wait for one.

The queue is controlled by how long it lasts, as in CoDel (RFC 8289) and in "Fail at Scale" (ACM Queue 13-8):
a queue that empties from time to time is a burst and does no harm. One that never empties answers no more
requests and makes each of them late.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Held = TypeVar("Held")

#: The longest time in seconds that a refusable request waits for a slot, and that a queue counts as a burst.
PATIENCE_SECONDS = 1.0
#: How many may wait in a burst. A process can do no more in `PATIENCE_SECONDS`, if each takes 10 ms.
MOST_WAITING = 100
#: How many others may wait, such as pages of the admin.
MOST_OTHERS_WAITING = 64
#: How many may wait for each slot in a queue that has lasted longer.
WAITING_FOR_EACH = 2
#: The bounds of `Overloaded.retry_seconds`.
SHORTEST_RETRY, LONGEST_RETRY = 1, 30


class Overloaded(Exception):
    """A request got no slot. `retry_seconds` says when to send it again."""

    def __init__(self, retry_seconds: int) -> None:
        super().__init__(retry_seconds)
        self.retry_seconds = retry_seconds


class _Waiter(Generic[Held]):
    __slots__ = ("held", "is_refusable", "turn")

    def __init__(self, *, is_refusable: bool) -> None:
        self.is_refusable = is_refusable
        self.held: Held | None = None
        self.turn = threading.Lock()
        self.turn.acquire()


class RequestSlots(Generic[Held]):
    """A fixed number of slots, each with a value that only its holder uses. They are given in turn.

    All but one are also for *others*, whose waiting refuses nobody. They have a queue of their own, which
    comes after the first one, except while no other works.
    """

    def __init__(
        self,
        values: list[Held],
        *,
        most_waiting: int,
        patience_seconds: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._free = values
        self._most_in_burst = most_waiting
        self._most_after_burst = min(most_waiting, WAITING_FOR_EACH * len(values))
        self._most_others = max(1, len(values) - 1)
        self._patience = patience_seconds
        self._clock = clock
        self._lock = threading.Lock()
        #: Empty while a slot is free.
        self._waiting: deque[_Waiter[Held]] = deque()
        #: Empty while a slot is free, unless `_most_others` work.
        self._others: deque[_Waiter[Held]] = deque()
        self._others_working = 0
        self._since = 0.0  # when the first queue was last empty

    def __len__(self) -> int:
        """Return how many requests wait, without the others."""
        return len(self._waiting)

    @property
    def others_waiting(self) -> int:
        return len(self._others)

    def take(self, *, is_refusable: bool) -> Held:
        """Wait for a slot and return its value. Raise `Overloaded` if a refusable request gets none.

        Give the value back.
        """
        with self._lock:
            if self._free:
                return self._free.pop()  # the one given last: idle connections stay idle
            if not self._waiting:
                self._since = self._clock()
            elif is_refusable and len(self._waiting) >= self._most():
                raise self._overloaded()
            waiter: _Waiter[Held] = _Waiter(is_refusable=is_refusable)
            self._waiting.append(waiter)
        waiter.turn.acquire(timeout=self._patience if is_refusable else -1)
        with self._lock:
            if waiter.held is not None:
                return waiter.held
            if waiter in self._waiting:  # its time is over, otherwise `give` has refused it
                self._waiting.remove(waiter)
            raise self._overloaded()

    def take_as_other(self, *, most_waiting: int) -> Held:
        """Wait however long, and return a slot's value. Raise `Overloaded` if `most_waiting` others wait.

        Give the value back with `is_other`.
        """
        with self._lock:
            if self._free and self._others_working < self._most_others:
                self._others_working += 1
                return self._free.pop()
            if len(self._others) >= most_waiting:
                raise Overloaded(SHORTEST_RETRY)
            waiter: _Waiter[Held] = _Waiter(is_refusable=False)
            self._others.append(waiter)
        waiter.turn.acquire()
        assert waiter.held is not None
        return waiter.held

    def give(self, held: Held, *, is_other: bool = False) -> None:
        """Give a slot to the request that has waited longest, after refusing those that are too many."""
        with self._lock:
            if is_other:
                self._others_working -= 1
            if self._others and not self._others_working:
                return self._give_to_other(held)
            while self._waiting:
                most = self._most()
                waiter = self._waiting.popleft()
                if not waiter.is_refusable or len(self._waiting) < most:
                    waiter.held = held
                    waiter.turn.release()
                    return None
                waiter.turn.release()
            if self._others and self._others_working < self._most_others:
                return self._give_to_other(held)
            self._free.append(held)
            return None

    def _give_to_other(self, held: Held) -> None:
        self._others_working += 1
        waiter = self._others.popleft()
        waiter.held = held
        waiter.turn.release()

    def _most(self) -> int:
        lasts = self._clock() - self._since
        return self._most_in_burst if lasts < self._patience else self._most_after_burst

    def _overloaded(self) -> Overloaded:
        """Make callers wait as long as the overload has lasted.

        Their repeats then arrive at the same rate, however many of them an overload has refused.
        """
        lasts = int(self._clock() - self._since)
        return Overloaded(min(max(SHORTEST_RETRY, lasts), LONGEST_RETRY))
