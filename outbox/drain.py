"""The drain of e-mails in this process, and the poll. Tasks and commands call them.

Any number of threads and processes may call both at any time.
"""

from __future__ import annotations

import time

from django.conf import settings

from notifications.log import log_changes
from notifications.wake import Reason
from outbox import process as processes
from outbox.claim import next_due_in, recover
from outbox.metrics import POLLS
from outbox.process import SHORT_PAUSE_SECONDS, Drained
from runtime.models import Heartbeat
from runtime.telemetry import tracing

#: How long one drain claims before it returns, so that the worker can run other tasks.
DRAIN_SECONDS = 30.0
POLL = "poll"
RECOVER_BATCH = 500


def drain_emails(reason: Reason = Reason.POLL) -> Drained | None:
    """Send due e-mails. Return None if a drain of this process already runs or the process is stopping.

    A drain that already runs claims once more. If the result has `more`, call again.
    """
    drain = processes.current()
    drain.wake(reason)
    done: Drained | None = None
    while drain.woken.is_set() and not drain.stopping.is_set():
        if not drain.draining.acquire(blocking=False):
            break
        try:
            with tracing.span("drain") as span:
                drain.drain_span = span
                done = drain.run(seconds=DRAIN_SECONDS, should_stop=drain.stopping.is_set)
                span.set_attribute("orderpost.settled", done.settled)
        finally:
            drain.gate.rest()
            drain.draining.release()
        if done.has_more or done.pause_seconds:
            break
    return done


def drain_due(reason: Reason = Reason.POLL) -> Drained | None:
    """Drain, and set `next_due_seconds` to the seconds until the earliest waiting row is due."""
    lookback = processes.current().lookback
    if (done := drain_emails(reason)) is not None:
        seconds = lookback.seconds(now=time.monotonic())
        waiting = next_due_in(lookback_seconds=seconds)
        if waiting is not None and waiting <= 0.0:  # another session locks it, or it was inserted just now
            waiting = SHORT_PAUSE_SECONDS
        # The run knows an earlier time if it gave rows back or left sends in flight.
        done.next_due_seconds = min(
            (one for one in (done.next_due_seconds, waiting) if one is not None), default=None
        )
    return done


@POLLS.time()
def poll() -> Drained | None:
    """Recover expired claims and drain. Beat schedules it every `POLL_INTERVAL` seconds.

    The first claim reads every due row. Write the heartbeat of polls if the process's drain made progress.
    """
    process = processes.current()
    while changes := recover(lease_seconds=settings.LEASE_SECONDS, limit=RECOVER_BATCH):
        log_changes(changes)
        if len(changes) < RECOVER_BATCH:
            break
    process.lookback.forget()
    done = drain_due()
    moving = process.progress_at > time.monotonic() - settings.POLL_INTERVAL
    if done is not None or moving:
        Heartbeat.beat(name=POLL)
    return done


def stop() -> None:
    """Make the process's drain give back the rows that it has not begun. Start no other drain."""
    processes.current().stopping.set()


def finish() -> None:
    """Wait until every row that this process claimed is settled or given back. Call it after `stop`.

    Wait for the drain of any thread, because Python does not wait for the timer's thread. Then collect the
    sends that an earlier drain left in flight, because no other drain follows.
    """
    process = processes.current()
    with process.draining:
        process.run(seconds=0.0, should_stop=lambda: True)
