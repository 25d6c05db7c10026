"""Which partitions should have been archived by now."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

from outbox.core.partitioned import PartitionedModel
from outbox.models import DetachedPartition
from outbox.retention.partitions import Partition


class Archives(NamedTuple):
    """The archives of one table; ages in seconds."""

    age_seconds: float | None  # of the newest; None: there is none
    overdue: int
    overdue_seconds: float  # since the hot days of the oldest one ended; 0.0: none is overdue


def archives(*, model: PartitionedModel, now: dt.datetime, attached: Sequence[Partition]) -> Archives:
    """Look up a table's newest archive, and its partitions that are over their hot days without one."""
    records = DetachedPartition.objects.filter(table=model._meta.db_table)
    newest = records.filter(archived_at__isnull=False).order_by("-archived_at").first()
    waiting = list(records.filter(archived_at=None).values_list("until", flat=True))
    due = [until + model.hot() for until in (*waiting, *(one.until for one in attached))]
    overdue = [when for when in due if when <= now]
    age = (now - newest.archived_at).total_seconds() if newest and newest.archived_at else None
    return Archives(
        None if age is None else max(0.0, age),
        len(overdue),
        (now - min(overdue)).total_seconds() if overdue else 0.0,
    )
