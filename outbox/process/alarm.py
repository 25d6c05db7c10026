"""Call a function at the earliest of the requested times, in a thread of the process."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)


class Alarm:
    """One waiting daemon thread. The first use starts it, so it runs after any fork."""

    def __init__(self, ring: Callable[[], object]) -> None:
        self._ring = ring
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._at = math.inf
        self._thread: threading.Thread | None = None

    def set(self, seconds: float) -> None:
        """Call the function in `seconds`, unless an earlier time was requested before."""
        with self._changed:
            at = time.monotonic() + max(0.0, seconds)
            if at >= self._at:
                return
            self._at = at
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="alarm", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while (left := self._at - time.monotonic()) > 0:
                    self._changed.wait(None if left == math.inf else left)
                self._at = math.inf
            try:
                self._ring()
            except Exception:  # the poll finds the rows that this call missed
                log.exception("alarm failed, left to the poll")
