"""The Celery tasks of background jobs and of the charts' sums."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from runtime.charts import sums
from runtime.jobs import work
from runtime.jobs.run import run_batch
from runtime.jobs.start import waker


@shared_task(name="sum_minutes")
def sum_minutes(**_: Any) -> None:
    """Sum the minutes that ended since the last run, for the admin's charts."""
    sums.sum_minutes()


@shared_task(name="run_bulk_jobs")
def run_bulk_jobs(**_: Any) -> None:
    """Do a batch of a bulk job, then queue another task: waiting drains run in between."""
    if run_batch():
        waker.wake()


@shared_task(name="do_work")
def do_work(**_: Any) -> None:
    """Do some other work, then queue another task if more is left."""
    if work.do_work():
        work.waker.wake()
