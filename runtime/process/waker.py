"""Call a function soon, or at the earliest requested time, while the caller does not wait for a broker.

`wake()` notes a time and returns. A thread calls the function at most once in each interval: at once after a
pause, less often under load. The first use starts the thread, which is after any fork. A wake-up is only a
hint. A failed one is logged and counted, and the poll finds the rows.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable

import structlog

from runtime.process.outage import Outage
from runtime.telemetry.metrics import counter

log = structlog.get_logger(__name__)

WAKEUPS = counter(
    "orderpost_wakeups",
    "wake-ups for `drain`, `due` (retries), `relay`, `bulk` (jobs) or `work` (of shops, and parcels that"
    " wait): `sent` or `lost`",
    ["target", "result"],
)

#: The pause after a call. While wake-ups keep coming it is longer, and one call serves more.
INTERVAL_SECONDS, BUSY_SECONDS = 0.1, 0.25
#: The time of a wake-up that is due at once, on the monotonic clock.
AT_ONCE = 0.0


class Waker:
    """A debounced, fire-and-forget call from a separate thread.

    `target` is the label of the wake-ups in the metrics.
    """

    def __init__(self, call: Callable[[], object], *, target: str) -> None:
        self._call = call
        self._sent, self._lost = (WAKEUPS.labels(target, result) for result in ("sent", "lost"))
        self.failures = 0
        #: The reason of the first `wake` that led to the present call.
        self.reason = ""
        self._reset()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._due_at = math.inf
        self._next_reason = ""
        self._is_calling = False
        self._outage = Outage(log)
        self._thread: threading.Thread | None = None

    def wake(self, reason: str = "", *, in_seconds: float = 0.0) -> None:
        """Have the function called in `in_seconds`, unless an earlier call is due.

        Neither wait for the call nor raise its errors.
        """
        due_at = time.monotonic() + in_seconds if in_seconds > 0 else AT_ONCE
        if due_at >= self._due_at:  # the thread will still forget that time, and call after that
            return
        with self._changed:
            if self._due_at == math.inf:
                self._next_reason = reason
            self._due_at = min(due_at, self._due_at)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="waker", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def finish(self, *, seconds: float) -> None:
        """Wait until no call is due. A command that exits at once would lose it."""
        with self._changed:
            self._changed.wait_for(lambda: self._due_at == math.inf and not self._is_calling, seconds)

    def _run(self) -> None:
        interval = INTERVAL_SECONDS
        while True:
            with self._changed:
                while (left := self._due_at - time.monotonic()) > 0:
                    self._changed.wait(None if left == math.inf else left)
                self._due_at = math.inf
                self._is_calling = True
                self.reason = self._next_reason
            try:
                self._call()
                self._sent.inc()
                self._outage.end("wake-ups are sent again")
            except Exception as error:  # noqa: BLE001 - the broker's client has its own errors; the poll helps
                self.failures += 1
                self._lost.inc()
                self._outage.warn("wake-up failed, left to the poll", error, failures=self.failures)
            with self._changed:
                self._is_calling = False
                self._changed.notify_all()
            time.sleep(interval)
            interval = BUSY_SECONDS if self._due_at == AT_ONCE else INTERVAL_SECONDS
