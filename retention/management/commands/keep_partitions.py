"""`manage.py keep_partitions`: the process that makes partitions ahead and detaches old ones.

It is the only long-running process with the database URL of the tables' owner (`PARTITION_DATABASE_URL`). It
makes missing partitions at its start and every hour, and runs a rollover once a day. Several may run. One of
them works on a table, and the others skip that table.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import structlog
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, InterfaceError, connections

from retention.partitions import partitions
from retention.rollover import REQUESTED, ROLLED_OVER, is_due, log_step, rollover
from retention.upkeep import ensure_all
from runtime.models import Heartbeat
from runtime.process.loop import run_until_stopped, stop_on_signals
from runtime.process.presence import keep_beating
from runtime.process.start import wait_for_postgres
from runtime.telemetry import health
from runtime.telemetry.metrics_server import watch

log = structlog.get_logger(__name__)

INTERVAL_SECONDS = 3600.0
ROLLOVER_SECONDS = 86_400.0
POLL_SECONDS = 60.0  # between two queries for a request of a rollover
#: The longest time of one step. Archiving a month takes minutes, on slow disks longer.
STEP_SECONDS = 7200.0


class Command(BaseCommand):
    help = "Make partitions ahead and detach old ones until stopped."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="do what is due now, and exit")

    def handle(self, *args: Any, once: bool, **options: Any) -> None:
        stopped = stop_on_signals()
        if not once:
            watch("partitions")
            keep_beating("partitions")
            wait_for_postgres(using="owner", pause=stopped.wait)

        def step() -> None:
            health.beat(within_seconds=STEP_SECONDS)
            work(stopped=stopped)
            if once:
                stopped.set()
            wait(stopped=stopped, seconds=INTERVAL_SECONDS)

        run_until_stopped(
            step=step,
            stopped=stopped,
            errors=(DatabaseError, InterfaceError),
            reconnect=connections.close_all,
            describe=lambda _: "partitions wait: the database is away or a lock was not free",
        )


def wait(*, stopped: threading.Event, seconds: float) -> bool:
    """Wait for `seconds`, `stopped` or a requested rollover. Return whether a rollover was requested."""
    began = time.monotonic()
    while not stopped.is_set() and (waited := time.monotonic() - began) < seconds:
        health.wait(stopped, min(POLL_SECONDS, seconds - waited))
        requested = Heartbeat.read_age(name=REQUESTED)
        if requested is not None and requested < time.monotonic() - began:
            return True
    return False


def work(*, stopped: threading.Event) -> None:
    """Make missing partitions. Run a rollover if the last complete one is a day old or one is requested.

    A stop ends a rollover after its current step, and the next run continues there. Raise `CommandError` if
    the role does not own the tables.
    """
    try:
        partitions.require_owner()
    except partitions.NotOwner as error:
        raise CommandError(str(error)) from error
    for _name in ensure_all():
        pass
    Heartbeat.beat(name=partitions.MADE)
    if not is_due(interval_seconds=ROLLOVER_SECONDS):
        return

    def report(step: str, **facts: Any) -> None:
        log_step(step, **facts)
        health.beat(within_seconds=STEP_SECONDS)
        if stopped.is_set():
            raise SystemExit(0)

    result = rollover(report=report)
    if left := [*result.waiting, *result.failed]:
        log.warning("rollover is not complete, trying again in an hour", left=left)
    else:
        Heartbeat.beat(name=ROLLED_OVER)
