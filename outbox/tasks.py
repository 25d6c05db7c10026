"""The Celery tasks of delivery. Their only argument says why they run; PostgreSQL has the e-mails."""

from __future__ import annotations

from typing import Any

from celery import shared_task
from django.conf import settings
from django.db import close_old_connections

from notifications.wake import Reason, wake
from outbox import drain
from outbox.drain import DrainResult
from runtime.jobs.run import wake_for_unfinished
from runtime.models import BulkJob
from runtime.process.waker import Waker


@shared_task(name="drain_emails")
def drain_emails(reason: str = Reason.UNKNOWN, **_: Any) -> None:
    """Send due e-mails. Enqueue another drain if this one returns before all are sent."""
    _schedule_next_drain(drain.drain_emails(Reason(reason)))


@shared_task(name="poll_outbox")
def poll_outbox(**_: Any) -> None:
    """Remove old exports, resume bulk jobs, recover expired claims, then drain."""
    BulkJob.objects.remove_old_results()
    wake_for_unfinished()
    _schedule_next_drain(drain.poll())


def _schedule_next_drain(report: DrainResult | None) -> None:
    """Start the next drain when its first e-mail is due, instead of at the next poll."""
    if report is None:
        return
    if report.has_more:
        wake(Reason.MORE)
    elif settings.FAST_PATH and (seconds := report.pause_seconds or report.next_due_seconds) is not None:
        timer.wake(in_seconds=seconds)


def _drain_when_due() -> None:
    close_old_connections()
    _schedule_next_drain(drain.drain_due(Reason.DUE))


#: Runs a drain in a worker when the earliest waiting e-mail is due.
timer = Waker(_drain_when_due, target="due")
