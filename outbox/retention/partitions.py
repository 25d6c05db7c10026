"""The partitions of tables that grow by the million: their names, bounds and making. Range by UUIDv7 id.

A model declares itself as `Partitioned` says and is made by `CreatePartitionedModel` in its first migration.
Called by migrate, by beat once a day, by readiness and by `manage.py partitions`. outbox/retention/detach.py
takes partitions away again. Needs a direct connection that may create tables (alias `direct`, or the one
that migrates).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import structlog
from django.apps import apps
from django.db import IntegrityError, connections, transaction

from outbox.core.clock import database_now
from outbox.core.ids import id_floor, id_time
from outbox.core.partitioned import Interval, Partitioned, PartitionedModel

log = structlog.get_logger(__name__)

AHEAD = 6
AHEAD_ALARM = 2
_CREATED = "_created"

# Rows are updated two or three times each and then never again. The defaults (a share of the table) never
# fire on millions of rows; these do after so many, and without naps.
_STORAGE = (
    "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000, "
    "autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 200000, "
    "autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000, "
    "autovacuum_vacuum_cost_delay = 0"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Partition:
    """One partition's name and the times, [since, until), of the ids that it takes."""

    name: str
    since: dt.datetime
    until: dt.datetime


def partitioned_models() -> list[PartitionedModel]:
    """This function will list the models whose tables are partitioned."""
    return [model for model in apps.get_models() if issubclass(model, Partitioned)]


def start_of(*, interval: Interval, when: dt.datetime, steps: int = 0) -> dt.datetime:
    """This function will give the start (UTC) of the month or day of `when`, `steps` intervals later.

    >>> start_of(interval="month", when=dt.datetime(2026, 12, 31, 23, tzinfo=dt.UTC), steps=2).isoformat()
    '2027-02-01T00:00:00+00:00'
    >>> start_of(interval="day", when=dt.datetime(2028, 2, 29, 23, tzinfo=dt.UTC), steps=1).isoformat()
    '2028-03-01T00:00:00+00:00'
    """
    when = when.astimezone(dt.UTC)
    if interval == "day":
        return dt.datetime(when.year, when.month, when.day, tzinfo=dt.UTC) + dt.timedelta(days=steps)
    years, month = divmod(when.year * 12 + when.month - 1 + steps, 12)
    return dt.datetime(years, month + 1, 1, tzinfo=dt.UTC)


def partition_at(*, model: PartitionedModel, when: dt.datetime, steps: int = 0) -> Partition:
    """This function will name and bound the partition of `model` that `when` falls into, or a neighbour."""
    interval = model.retention.interval
    since = start_of(interval=interval, when=when, steps=steps)
    until = start_of(interval=interval, when=since, steps=1)
    suffix = f"{since:%Y%m}" if interval == "month" else f"{since:%Y%m%d}"
    return Partition(f"{model._meta.db_table}_p{suffix}", since, until)


def attached(*, model: PartitionedModel, using: str = "default") -> list[Partition]:
    """This function will list the attached partitions of `model`, oldest first, from the catalogue."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            """
            SELECT child.relname, pg_get_expr(child.relpartbound, child.oid)
            FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid
            WHERE inhparent = to_regclass(%s) AND NOT inhdetachpending
            """,
            [model._meta.db_table],
        )
        found = cursor.fetchall()
    return sorted((_parse(name, bounds) for name, bounds in found), key=lambda partition: partition.since)


def _parse(name: str, bounds: str) -> Partition:
    low, high = (uuid.UUID(part) for part in bounds.split("'")[1::2])  # FOR VALUES FROM ('…') TO ('…')
    return Partition(name, id_time(low), id_time(high))


def ensure(
    *,
    model: PartitionedModel,
    using: str = "direct",
    ahead: int = AHEAD,
    behind: int = 1,
    lock_timeout: str = "2s",
    dry_run: bool = False,
) -> list[str]:
    """This function will make what is missing from `behind` intervals ago to `ahead` from now.

    Each is made in a transaction of its own by LIKE and ATTACH, which lets readers and writers of the
    parent go on. Safe to run twice at once. Returns the names made; raises `OperationalError` when a lock
    was not to be had within `lock_timeout` (run it again). Times are the database's.
    """
    connection = connections[using]
    quote = connection.ops.quote_name
    parent = quote(model._meta.db_table)
    now = database_now(using=using)
    made = []
    for partition in (partition_at(model=model, when=now, steps=step) for step in range(-behind, ahead + 1)):
        if partition.until + model.hot() <= now:
            continue  # it has left the table by right
        table = quote(partition.name)
        day = dt.timedelta(days=1)
        with transaction.atomic(using=using), connection.cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [lock_timeout])
            cursor.execute(
                "SELECT pg_advisory_xact_lock(hashtext(%s))", [f"partitions:{model._meta.db_table}"]
            )
            cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [partition.name])
            if cursor.fetchone()[0]:
                continue
            made.append(partition.name)
            if dry_run:
                continue
            cursor.execute(
                f"CREATE TABLE {table} (LIKE {parent} "
                f"INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE) WITH ({_STORAGE})"
            )
            # Prunes filters on time, and refuses rows whose id is of another time than the database's.
            # DDL takes no parameters: they are written into it.
            cursor.execute(
                written(
                    f"ALTER TABLE {table} ADD CONSTRAINT {quote(partition.name + _CREATED)} "
                    f"CHECK (created_at >= %s AND created_at < %s)",
                    [partition.since - day, partition.until + day],
                    using=using,
                )
            )
            cursor.execute(
                written(
                    f"ALTER TABLE {parent} ATTACH PARTITION {table} FOR VALUES FROM (%s) TO (%s)",
                    [str(id_floor(partition.since)), str(id_floor(partition.until))],
                    using=using,
                )
            )
        log.info("partition made", partition=partition.name)
    return made


def written(statement: str, values: Sequence[Any], *, using: str) -> str:
    """This function will write values into a statement that takes no parameters, as DDL does not."""
    text: str = connections[using].ops.compose_sql(statement, values)  # type: ignore[attr-defined]  # PostgreSQL's
    return text


def ensure_all(*, using: str = "direct", ahead: int = AHEAD, dry_run: bool = False) -> Iterator[str]:
    """This function will do `ensure` for every partitioned model whose table exists, yielding names made.

    Logs an error when fewer than `AHEAD_ALARM` follow the present one even then.
    """
    tables = connections[using].introspection.table_names()
    for model in partitioned_models():
        if model._meta.db_table not in tables:
            continue
        yield from ensure(model=model, using=using, ahead=ahead, dry_run=dry_run)
        left = ahead_of(model=model, now=database_now(using=using), using=using)
        if left < AHEAD_ALARM:
            log.error("partitions run out", table=model._meta.db_table, ahead=left)


def why_misplaced(error: IntegrityError) -> str | None:
    """This function will say why a row fits no partition, or None if the error is about something else.

    The id was made by a host whose clock is wrong, or is no UUIDv7, or no partition was made for today.
    """
    diagnosis = getattr(error.__cause__, "diag", None)
    if diagnosis is None or diagnosis.sqlstate != "23514":  # check_violation
        return None
    if (diagnosis.constraint_name or "").endswith(_CREATED):
        return f"the id's time is not the database's: {diagnosis.constraint_name}"
    if diagnosis.constraint_name is None:
        return str(diagnosis.message_primary)
    return None


def ahead_of(*, model: PartitionedModel, now: dt.datetime, using: str = "default") -> int:
    """This function will count the attached partitions that follow the one of `now` without a gap.

    -1 when even the present one is missing.
    """
    names = {partition.name for partition in attached(model=model, using=using)}
    count = 0
    while partition_at(model=model, when=now, steps=count).name in names:
        count += 1
    return count - 1
