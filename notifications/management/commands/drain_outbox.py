"""`manage.py drain_outbox [--standby | --loop]`: send e-mails without broker, worker or beat."""

from __future__ import annotations

import threading
import time
from typing import Any

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, InterfaceError, connections

from notifications.delivery import drain
from outbox import bulk
from outbox.models import Heartbeat
from outbox.process.loop import run_until_stopped, stop_on_signals
from outbox.process.start import wait_for_postgres
from outbox.telemetry import health
from outbox.telemetry.metrics_server import watch

log = structlog.get_logger(__name__)

#: The standby polls when the last poll is older than STANDBY_AFTER intervals. It checks LOOKS times in each.
STANDBY_AFTER = 2
LOOKS = 4
#: The heartbeat of a running standby.
STANDBY = "standby"


class Command(BaseCommand):
    help = (
        "Recovers expired claims, then claims and sends e-mails until none is due, with batches of bulk jobs "
        "in between. Needs only PostgreSQL and a provider. May run next to workers and other drains."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        mode = parser.add_mutually_exclusive_group()
        mode.add_argument("--loop", action="store_true", help="poll every POLL_INTERVAL until stopped")
        mode.add_argument(
            "--standby",
            action="store_true",
            help="poll only if no other process does (the last recorded poll is older than two intervals)",
        )

    def handle(self, *args: Any, loop: bool, standby: bool, **options: Any) -> None:
        """Run until done, or until SIGTERM or SIGINT. Then give back rows that are not begun, and return."""
        stopped = stop_on_signals(also=drain.stop)
        if not (loop or standby):
            while _drain(stopped, record=True)[0]:
                pass
            drain.finish()
            return
        watch("standby")
        wait_for_postgres(pause=stopped.wait)
        began = time.monotonic()
        interval = settings.POLL_INTERVAL / (LOOKS if standby else 1)

        def step() -> None:
            wait = interval
            if loop or _nobody_polls(since=began):
                more, next_due = _drain(stopped, record=loop)
                if more:
                    wait = 0.0
                elif next_due is not None:
                    wait = min(interval, max(0.0, next_due))
            if standby:
                Heartbeat.beat(name=STANDBY)
            health.wait(stopped, wait)

        run_until_stopped(
            step=step,
            stopped=stopped,
            errors=(DatabaseError, InterfaceError),
            reconnect=connections.close_all,
            describe=lambda error: "database away, trying again",
            base_seconds=min(2.0, interval),
            cap_seconds=interval,
        )
        drain.finish()


def _drain(stopped: threading.Event, *, record: bool) -> tuple[bool, float | None]:
    """Poll, which sends for at most half a minute, then do one batch of a bulk job.

    E-mails come first, so that they do not wait for a job that fails or that has a million rows. Return
    whether to continue at once, and the seconds until the next row is due, None if no row waits.
    """
    health.end()  # the drain's own loop is watched during the poll
    done = drain.poll(record=record)
    if done is not None and done.settled:
        log.info("drained", settled=done.settled)
    if stopped.is_set():
        return False, None
    more = bulk.run_batch() or (done is not None and done.has_more)
    if done is None or not settings.FAST_PATH:
        return more, None
    return more, done.pause_seconds or done.next_due_seconds


def _nobody_polls(*, since: float) -> bool:
    """Tell whether polls are missing. If no poll was ever recorded, count from `since` (monotonic)."""
    age = Heartbeat.read_age(name=drain.POLL)
    missed = time.monotonic() - since if age is None else age
    return missed > STANDBY_AFTER * settings.POLL_INTERVAL
