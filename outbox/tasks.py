"""Celery's door to the engine's upkeep."""

from __future__ import annotations

from typing import Any

from celery import shared_task

from outbox import partitions


@shared_task
def ensure_partitions(**_: Any) -> None:
    """This function will make the next partitions of every partitioned table."""
    for _name in partitions.ensure_all():
        pass
