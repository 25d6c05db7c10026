"""The drain of consume_cdc, which a trigger wakes in this process without broker or worker.

A trigger only causes a claim, and the claim decides which process sends a row. So any number of triggers,
workers and polls may see the same row.
"""

from __future__ import annotations

import contextvars
import math
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import structlog
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connections

from notifications.delivery import drain
from outbox.delivery.sender import Drained
from outbox.events.publishing import notify
from outbox.process.loop import run_until_stopped
from outbox.process.waker import Waker
from outbox.telemetry import health

log = structlog.get_logger(__name__)

#: Seconds between two claims while changes keep coming. One claim takes the rows of several changes.
INTERVAL_SECONDS = 0.05


class WokenDrain:
    """A context manager with a thread that sends due e-mails when woken, and when a retry becomes due.

    The thread polls when it starts and every POLL_INTERVAL, so that no e-mail waits for a lost trigger. The
    exit of the block gives back the rows that are not begun and waits for the sends in flight. If the thread
    fails, it sets `stopped`, and the block raises its error.
    """

    def __init__(self, *, stopped: threading.Event) -> None:
        self._stopped = stopped
        self._due = threading.Event()
        self._poll_at = self._due_at = 0.0  # monotonic
        self._polls_now = threading.Event()
        self._error: Exception | None = None
        self._waker = Waker(
            self._claim_again, target="here", interval_seconds=INTERVAL_SECONDS, busy_seconds=INTERVAL_SECONDS
        )
        context = contextvars.copy_context()  # so that the thread beats for the caller's role
        self._thread = threading.Thread(target=context.run, args=[self._run], name="woken-drain")

    def wake(self) -> None:
        """Claim due rows soon, without waiting. For any thread."""
        drain.note_trigger()
        self._waker.wake()

    def targets(self) -> Mapping[str, Callable[[], None]]:
        """Return the function to call for a change of each table: wake this drain, or the relays by Redis."""
        return {"email_notifications": self.wake, "outbox_events": notify.waker.wake}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, stack: TracebackType | None) -> None:
        self._stopped.set()
        self._due.set()  # ends a wait
        drain.stop()
        self._thread.join()
        drain.finish()
        if self._error is not None and kind is None:
            raise self._error

    def _claim_again(self) -> None:
        self._due.set()
        drain.claim_again()

    def _run(self) -> None:
        try:
            run_until_stopped(
                step=self._step,
                stopped=self._stopped,
                errors=(DatabaseError, InterfaceError),
                reconnect=connections.close_all,
                describe=lambda _: "database away, trying again",
                cap_seconds=min(16.0, settings.POLL_INTERVAL),
                loop="woken",
            )
        except Exception as error:
            log.exception("drain failed, the process ends")
            self._error = error
            self._stopped.set()
        finally:
            connections.close_all()

    def _step(self) -> None:
        while not self._stopped.is_set() and (left := self._seconds_left()) > 0:
            health.beat("woken")
            if self._due.wait(min(left, health.WRITE_SECONDS)):
                break
        if self._stopped.is_set():
            return
        self._due.clear()
        self._due_at = 0.0  # so that the next step claims at once if this drain fails
        health.end("woken")  # a backlog can take hours; the drain's own loop is watched during it
        polls = self._polls_now.is_set() or time.monotonic() >= self._poll_at
        if polls:
            self._polls_now.clear()
        try:
            done = drain.poll(record=False) if polls else drain.drain_due()
        except Exception:
            self._polls_now.set()
            raise
        if polls:
            self._poll_at = time.monotonic() + settings.POLL_INTERVAL
        self._due_at = time.monotonic() + _pause(done)

    def _seconds_left(self) -> float:
        return min(self._poll_at, self._due_at) - time.monotonic()


def _pause(done: Drained | None) -> float:
    """Return the seconds until the next drain without a wake-up, from the result of the last one."""
    if done is None:
        return math.inf
    if done.has_more:
        return 0.0
    return done.pause_seconds or (math.inf if done.next_due_seconds is None else done.next_due_seconds)
