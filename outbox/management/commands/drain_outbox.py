"""`manage.py drain_outbox [--loop]`: send e-mails without broker, worker or beat."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError, InterfaceError, connections

from outbox import drain
from outbox.claim import next_due_in
from outbox.conditions import explain_provider
from outbox.drain import SHORT_PAUSE_SECONDS, DrainResult
from outbox.gate.breaker import BreakerState
from runtime.jobs.run import run_batch
from runtime.jobs.work import do_work
from runtime.process.backoff import RetryPolicy
from runtime.process.cached_rows import keep_fresh
from runtime.process.loop import run_until_stopped, stop_on_signals
from runtime.process.presence import keep_beating
from runtime.process.start import wait_for_postgres
from runtime.telemetry import health
from runtime.telemetry.metrics_server import watch

log = structlog.get_logger(__name__)

#: The longest pause of a provider (429) that the command waits for.
LONGEST_PROVIDER_PAUSE_SECONDS = 60.0
#: After so many polls in a row that settle nothing, at least a second apart, the command gives up.
MOST_IDLE_POLLS = 30


class Command(BaseCommand):
    help = (
        "Send e-mails without a broker until none is due. Expired claims are taken back first, and batches "
        "of bulk jobs run in between. Needs only PostgreSQL and a provider. May run next to workers and "
        "other drains. Exits with 1 if e-mails are due that it cannot send now, such as during an outage."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--loop", action="store_true", help="poll every POLL_INTERVAL until stopped")

    def handle(self, *args: Any, loop: bool, **options: Any) -> None:
        """Run until done, or until SIGTERM or SIGINT. Then give back rows that are not begun, and return."""
        stopped = stop_on_signals(also=drain.stop)
        if not loop:
            problem = _send_all(stopped)
            drain.finish()
            if problem:
                raise CommandError(problem)
            return
        watch("standby")
        keep_beating("standby")
        wait_for_postgres(pause=stopped.wait)
        keep_fresh()
        poll_at = 0.0  # monotonic

        def step() -> None:
            nonlocal poll_at
            # The timer only drains: a poll reads all due rows, and may meet many dead index entries.
            is_poll_due = time.monotonic() >= poll_at
            more, done = _work(stopped, drain.poll if is_poll_due else drain.drain_due)
            if is_poll_due:
                poll_at = time.monotonic() + settings.POLL_INTERVAL
            wait = max(0.0, poll_at - time.monotonic())
            if more:
                wait = 0.0
            elif done is not None and settings.FAST_PATH:
                next_due = done.pause_seconds or done.next_due_seconds
                wait = wait if next_due is None else min(wait, max(0.0, next_due))
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


def _send_all(stopped: threading.Event) -> str:
    """Poll until no row is due, and return "". If that cannot be reached now, return the reason.

    One poll may leave rows that are due: those that wait for the rate limit or for a short pause of the
    provider, those that it gave back because their sends began late, and those that another session locks.
    """
    idle = 0
    while not stopped.is_set():
        more, done = _work(stopped, drain.poll)
        if more:
            continue
        due_in = next_due_in()
        if due_in is None or due_in > 0.0:
            return ""
        if problem := _describe_outage():
            return problem
        idle = 0 if done is not None and done.settled else idle + 1
        if idle >= MOST_IDLE_POLLS:
            return f"E-mails are due, but {idle} polls sent none. Another session may lock their rows."
        pause = done.pause_seconds if done is not None else 0.0
        stopped.wait(max(pause, SHORT_PAUSE_SECONDS))
    return ""


def _describe_outage() -> str:
    """Return a text with each provider's state, or "" if one takes e-mails, now or after a short pause."""
    providers = drain.gate().read_providers()
    for provider in providers:
        is_open = provider.state is BreakerState.OPEN
        if not is_open and provider.reopens_in_seconds <= LONGEST_PROVIDER_PAUSE_SECONDS:
            return ""
    causes = "; ".join(": ".join(explain_provider(provider)) for provider in providers)
    return f"E-mails are due, but no provider takes them now: {causes}."


def _work(
    stopped: threading.Event, send: Callable[[], DrainResult | None]
) -> tuple[bool, DrainResult | None]:
    """Call `send`, which sends for at most half a minute, then do one batch of a bulk job, and other work.

    E-mails come first, and do not wait for a job that fails or that has a million rows. A worker or
    `manage.py privacy` does the jobs on a person's data, each of which is one long batch. Return whether to
    continue at once, and the drain's report, None if none ran.
    """
    health.end()  # the drain's own loop is watched meanwhile
    done = send()
    if done is not None and done.settled:
        log.info("drained", settled=done.settled)
    if stopped.is_set():
        return False, done
    is_left = run_batch(persons=False)
    return do_work(is_standby=True) or is_left or (done is not None and done.has_more), done
