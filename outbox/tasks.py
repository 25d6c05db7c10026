"""Celery's door to the engine's upkeep."""

from __future__ import annotations

from typing import Any

import structlog
from celery import shared_task

from outbox.retention import partitions
from outbox.retention import rollover as retention

log = structlog.get_logger(__name__)


@shared_task
def ensure_partitions(**_: Any) -> None:
    """This function will make the next partitions of every partitioned table."""
    for _name in partitions.ensure_all():
        pass


@shared_task
def rollover(**_: Any) -> None:
    """This function will do all that the retention policy wants done today; the log has every step."""
    retention.rollover(report=_log_step)


def _log_step(step: str, **facts: Any) -> None:
    if step != "bytes":
        log.info("rollover", step=step, **facts)
