"""Tells the workers, after a commit, that there is something to do, without the caller waiting for a broker.

`wake()` sets an event and returns; a thread of the process (started on first use, so after any fork)
enqueues at most one task in each interval: at once after a pause, less often under load. A wake-up is only a
hint: one that fails is logged and counted, and the poll finds the rows.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import structlog

from outbox.telemetry import instruments

log = structlog.get_logger(__name__)

#: Seconds after a call of `enqueue`; the longer one while wake-ups keep coming: one call then does for more.
INTERVAL_SECONDS, BUSY_SECONDS = 0.1, 0.25


class Waker:
    """A debounced, fire-and-forget call of `enqueue` from a thread of its own.

    `target` names whom it wakes, for the metrics.
    """

    def __init__(
        self,
        enqueue: Callable[[], object],
        *,
        target: str = "other",
        interval_seconds: float = INTERVAL_SECONDS,
        busy_seconds: float = BUSY_SECONDS,
    ) -> None:
        self._enqueue = enqueue
        self._interval, self._busy = interval_seconds, busy_seconds
        self._sent, self._lost = (instruments.WAKEUPS.labels(target, result) for result in ("sent", "lost"))
        self.failures = 0
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._event = threading.Event()
        self._start = threading.Lock()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Have `enqueue` called soon, without waiting for it and without its errors."""
        if not self._event.is_set():  # else the thread has yet to clear it, and enqueues after that
            self._event.set()
        if self._thread is None:
            with self._start:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="waker", daemon=True)
                    self._thread.start()

    def _run(self) -> None:
        interval = self._interval
        while True:
            self._event.wait()
            self._event.clear()
            try:
                self._enqueue()
                self._sent.inc()
            except Exception as error:  # noqa: BLE001 - whatever the broker's client raises, the poll is the cure
                self.failures += 1
                self._lost.inc()
                log.warning("wake-up failed, left to the poll", error=str(error), failures=self.failures)
            time.sleep(interval)
            interval = self._busy if self._event.is_set() else self._interval
