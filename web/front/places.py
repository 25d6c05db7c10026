"""The places in which strangers send their bodies, and the queue of those who wait for one.

No thread waits: a stranger's request is kept until `give` or `expire` returns it.
"""

from __future__ import annotations

import enum
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Generic, TypeVar

Asked = TypeVar("Asked")

#: Strangers whose bodies a process reads or works on at a time, and those of one name.
MOST, MOST_OF_NAME = 8, 4
#: Those that wait for a place, and those of one name.
MOST_WAITING, MOST_WAITING_OF_NAME = 32, 16
#: How long one waits.
WAIT_SECONDS = 10.0


class Answer(enum.Enum):
    """The fate of a stranger: it has a place, it waits for one, or it is refused."""

    PLACE = enum.auto()
    WAITS = enum.auto()
    REFUSED = enum.auto()


class Places(Generic[Asked]):
    """`MOST` places, of which one name has at most `MOST_OF_NAME`."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._working: Counter[str] = Counter()
        self._waiting: deque[tuple[float, str, Asked]] = deque()
        self._is_closed = False

    @property
    def working(self) -> int:
        return self._working.total()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take(self, name: str, asked: Asked, *, may_wait: bool) -> Answer:
        """Take a place for a request. If it waits, `give` returns it later with its place, or `expire`."""
        with self._lock:
            if self._has_place(name):
                self._working[name] += 1
                return Answer.PLACE
            waiting_of_name = sum(other == name for _, other, _ in self._waiting)
            if (
                not may_wait
                or self._is_closed
                or len(self._waiting) >= MOST_WAITING
                or waiting_of_name >= MOST_WAITING_OF_NAME
            ):
                return Answer.REFUSED
            self._waiting.append((self._clock() + WAIT_SECONDS, name, asked))
            return Answer.WAITS

    def give(self, name: str) -> Asked | None:
        """Give a place back. Return the request that has it now, if one waited for it."""
        with self._lock:
            self._working[name] -= 1
            if not self._working[name]:
                del self._working[name]
            for entry in () if self._is_closed else self._waiting:
                _, other, asked = entry
                if self._has_place(other):
                    self._waiting.remove(entry)
                    self._working[other] += 1
                    return asked
            return None

    def expire(self) -> list[Asked]:
        """Return the requests that have waited too long. They have no place."""
        now = self._clock()
        expired = []
        with self._lock:
            while self._waiting and (self._is_closed or self._waiting[0][0] <= now):
                expired.append(self._waiting.popleft()[2])
        return expired

    def close(self) -> None:
        """Let nobody wait from now on: `expire` returns all."""
        self._is_closed = True

    def _has_place(self, name: str) -> bool:
        return self._working.total() < MOST and self._working[name] < MOST_OF_NAME
