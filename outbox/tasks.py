"""The engine's Celery tasks: bulk jobs, the sums of each minute, and the daily tasks of release 0.1.0.

`manage.py keep_partitions` now does the work of the daily tasks. A worker with the database URL of the
tables' owner still does it. Any other worker only logs a warning if keep_partitions has not run for a day,
and an error if partitions run out.
"""

from __future__ import annotations

from typing import Any

import structlog
from celery import shared_task

from outbox import bulk
from outbox.conditions import UPKEEP_LATE_SECONDS
from outbox.database.clock import read_database_time
from outbox.database.postgres.connection import PoolerFound
from outbox.models import Heartbeat
from outbox.retention import rollover as rollovers
from outbox.retention.partitions import partitions
from outbox.traffic import minutes

log = structlog.get_logger(__name__)


@shared_task
def sum_minutes(**_: Any) -> None:
    """Sum the minutes that ended since the last run, for the admin's charts."""
    minutes.sum_minutes()


@shared_task
def run_bulk_jobs(**_: Any) -> None:
    """Do a batch of a bulk job, then queue another task, so that waiting drains run in between."""
    if bulk.run_batch():
        bulk.waker.wake()


@shared_task
def ensure_partitions(**_: Any) -> None:
    """Create the next partitions of every partitioned table."""
    if _owns_tables():
        for _name in partitions.ensure_all():
            pass
        return
    _warn_if_late(partitions.MADE)
    for model in partitions.partitioned_models():
        partitions.check_stock(model=model, now=read_database_time())


@shared_task
def rollover(**_: Any) -> None:
    """Do everything that the retention settings require today, and log each step."""
    if _owns_tables():
        rollovers.rollover(report=rollovers.log_step)
    else:
        _warn_if_late(rollovers.ROLLED_OVER)


def _owns_tables() -> bool:
    try:
        return partitions.is_table_owner()
    except PoolerFound:  # the work needs session locks, whatever the role owns
        return False


def _warn_if_late(name: str) -> None:
    age = Heartbeat.read_age(name=name)
    if age is None or age > UPKEEP_LATE_SECONDS:
        log.warning("keep_partitions does not run, and this role does not own the tables", heartbeat=name)
