"""`manage.py drain_outbox [--loop]`: send e-mails without broker, worker or beat."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, InterfaceError, connections

from outbox import drain
from outbox.process import Drained
from runtime import bulk_jobs
from runtime.process.backoff import RetryPolicy
from runtime.process.cached_rows import keep_fresh
from runtime.process.loop import run_until_stopped, stop_on_signals
from runtime.process.start import wait_for_postgres
from runtime.telemetry import health
from runtime.telemetry.metrics_server import watch

log = structlog.get_logger(__name__)


class Command(BaseCommand):
    help = (
        "Send e-mails without a broker until none is due. Expired claims are taken back first, and batches "
        "of bulk jobs run in between. Needs only PostgreSQL and a provider. May run next to workers and "
        "other drains."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--loop", action="store_true", help="poll every POLL_INTERVAL until stopped")

    def handle(self, *args: Any, loop: bool, **options: Any) -> None:
        """Run until done, or until SIGTERM or SIGINT. Then give back rows that are not begun, and return."""
        stopped = stop_on_signals(also=drain.stop)
        if not loop:
            while _work(stopped, drain.poll)[0]:
                pass
            drain.finish()
            return
        watch("standby")
        wait_for_postgres(pause=stopped.wait)
        keep_fresh()
        poll_at = 0.0  # monotonic

        def step() -> None:
            nonlocal poll_at
            # A poll reads all due rows and may meet many dead index entries, so the timer only drains.
            is_poll_due = time.monotonic() >= poll_at
            more, next_due = _work(stopped, drain.poll if is_poll_due else drain.drain_due)
            if is_poll_due:
                poll_at = time.monotonic() + settings.POLL_INTERVAL
            wait = max(0.0, poll_at - time.monotonic())
            if more:
                wait = 0.0
            elif next_due is not None:
                wait = min(wait, max(0.0, next_due))
            health.wait(stopped, wait)

        run_until_stopped(
            step=step,
            stopped=stopped,
            errors=(DatabaseError, InterfaceError),
            reconnect=connections.close_all,
            describe=lambda error: "database away, trying again",
            policy=RetryPolicy(
                base_seconds=min(2.0, settings.POLL_INTERVAL),
                cap_seconds=settings.POLL_INTERVAL,  # a longer wait would make this poll late
            ),
        )
        drain.finish()


def _work(stopped: threading.Event, send: Callable[[], Drained | None]) -> tuple[bool, float | None]:
    """Call `send`, which sends for at most half a minute, then do one batch of a bulk job.

    E-mails come first, so that they do not wait for a job that fails or that has a million rows. A worker or
    `manage.py privacy` does the jobs on a person's data, because each is one long batch. Return whether to
    continue at once, and the seconds until the next row is due, None if no row waits.
    """
    health.end()  # the drain's own loop is watched meanwhile
    done = send()
    if done is not None and done.settled:
        log.info("drained", settled=done.settled)
    if stopped.is_set():
        return False, None
    more = bulk_jobs.run_batch(persons=False) or (done is not None and done.has_more)
    if done is None or not settings.FAST_PATH:
        return more, None
    return more, done.pause_seconds or done.next_due_seconds
