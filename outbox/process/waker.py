"""Wake the workers after a commit, while the caller does not wait for a broker.

`wake()` sets an event and returns. A thread of the process, which the first use starts (so after any fork),
enqueues at most one task in each interval: at once after a pause, less often under load. A wake-up is only a
hint, so a failed one is logged and counted, and the poll finds the rows.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import structlog

from outbox.telemetry import instruments

log = structlog.get_logger(__name__)

#: The pause after a call of `enqueue`. It is longer while wake-ups keep coming, so that one call serves more.
INTERVAL_SECONDS, BUSY_SECONDS = 0.1, 0.25


class Waker:
    """A debounced, fire-and-forget call of `enqueue` from a separate thread.

    `target` is the label of the wake-ups in the metrics.
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
        """Have `enqueue` called soon. Neither wait for it nor raise its errors."""
        if not self._event.is_set():  # otherwise the thread will still clear it, and enqueue after that
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
            except Exception as error:  # noqa: BLE001 - the broker's client has its own errors; the poll helps
                self.failures += 1
                self._lost.inc()
                log.warning("wake-up failed, left to the poll", error=str(error), failures=self.failures)
            time.sleep(interval)
            interval = self._busy if self._event.is_set() else self._interval
