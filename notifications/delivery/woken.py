"""The drain of follow_wal and consume_cdc, which a trigger wakes in this process without broker or worker.

A trigger only causes a claim, and the claim decides which process sends a row. So any number of triggers,
workers and polls may see the same row.
"""

from __future__ import annotations

import contextvars
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import structlog
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connections

from notifications.delivery import drain
from notifications.delivery import process as processes
from outbox.database.transactions import invisible
from outbox.delivery.sender import Drained
from outbox.events.publishing import notify
from outbox.process.loop import run_until_stopped
from outbox.process.waker import Waker
from outbox.telemetry import health

log = structlog.get_logger(__name__)

#: Seconds between two claims while changes keep coming. One claim takes the rows of several changes.
INTERVAL_SECONDS = 0.05
#: Seconds until the next claim while a committed transaction is not visible yet.
AGAIN_SECONDS = 0.1


class WokenDrain:
    """A context manager with a thread that sends due e-mails when woken, and when a retry becomes due.

    The thread polls when it starts and every POLL_INTERVAL, so that no e-mail waits for a lost trigger. The
    exit of the block gives back the rows that are not begun and waits for the sends in flight. If the thread
    fails, it sets `stopped`, and the block raises its error.
    """

    def __init__(self, *, stopped: threading.Event) -> None:
        self._stopped = stopped
        self._due = threading.Event()
        self._poll_at = self._due_at = self._claimed_at = 0.0  # monotonic
        self._every = math.inf
        self._polls_now = threading.Event()
        #: Transactions that the write-ahead log reported. None: those before it came from another stream.
        self._told: deque[int | None] = deque()
        self._invisible: set[int] = set()  # the reported transactions that no claim sees yet
        self._error: Exception | None = None
        self._waker = Waker(
            self._claim_again, target="here", interval_seconds=INTERVAL_SECONDS, busy_seconds=INTERVAL_SECONDS
        )
        context = contextvars.copy_context()  # so that the thread beats for the caller's role
        self._thread = threading.Thread(target=context.run, args=[self._run], name="woken-drain")

    def wake(self, xid: int | None = None) -> None:
        """Claim due rows soon, without waiting. For any thread.

        With the `xid` of a committed transaction, claim again until its rows are visible.
        """
        if xid is not None:
            self._told.append(xid)
        drain.note_trigger()
        self._waker.wake()

    def poll_now(self) -> None:
        """Poll soon, because the trigger may have missed changes. For any thread."""
        self._told.append(None)
        self._polls_now.set()
        self._claim_again()

    def poll_every(self, seconds: float) -> None:
        """Claim every `seconds` without being woken, until the next call. For any thread."""
        self._every = seconds
        self._due.set()  # ends a wait that was longer

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
            self._notice_told()
            triggers = processes.current().triggers
            kept = list(triggers) if self._invisible else []  # they also cause the claim that sees their rows
            done = drain.poll(record=False) if polls else drain.drain_due()
            triggers.extend(kept)
        except Exception:
            self._polls_now.set()
            raise
        self._claimed_at = time.monotonic()
        if polls:
            self._poll_at = self._claimed_at + settings.POLL_INTERVAL
        self._due_at = self._claimed_at + (AGAIN_SECONDS if self._invisible else _pause(done))

    def _notice_told(self) -> None:
        while self._told:
            if (xid := self._told.popleft()) is None:
                self._invisible.clear()
            else:
                self._invisible.add(xid)
        if self._invisible:
            self._invisible = invisible(self._invisible)

    def _seconds_left(self) -> float:
        return min(self._poll_at, self._due_at, self._claimed_at + self._every) - time.monotonic()


def _pause(done: Drained | None) -> float:
    """Return the seconds until the next drain without a wake-up, from the result of the last one."""
    if done is None:
        return math.inf
    if done.has_more:
        return 0.0
    return done.pause_seconds or (math.inf if done.next_due_seconds is None else done.next_due_seconds)
