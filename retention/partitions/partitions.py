"""Names, bounds and creation of partitions. Tables are partitioned by range of their UUIDv7 id.

A partitioned model inherits `Partitioned`, and `CreatePartitionedModel` creates it in its first migration.
Making partitions needs a direct connection of the tables' owner: alias `owner`, or the one that migrates.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import structlog
from django.db import connections, transaction

from retention.partitioned import Interval, PartitionedModel, partitioned_models
from runtime.database.clock import read_database_time
from runtime.database.ids import id_floor
from runtime.database.partitions import CREATED_CHECK, Partition

log = structlog.get_logger(__name__)

#: How many future partitions to make. The process that makes them may be down for a month.
AHEAD: dict[Interval, int] = {"month": 6, "day": 35}
#: How far a row's time, by the database's clock, may be outside of the partition of its id.
CLOCKS_APART = dt.timedelta(days=1)
#: The heartbeat of keep_partitions.
MADE = "partitions"

# Each row is updated two or three times and then never again. Autovacuum's default thresholds are a share of
# the table, too high for millions of rows. These are numbers of rows. Vacuum does not pause either.
_STORAGE = (
    "autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50000, "
    "autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 200000, "
    "autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 100000, "
    "autovacuum_vacuum_cost_delay = 0"
)


class PartitionsAhead(NamedTuple):
    """The future partitions of one table, and its months that should be files by now."""

    table: str
    partitions_ahead: int  # after the current one, without a gap; -1 if even that is missing
    partitions_ahead_seconds: float  # until the last of them ends
    archive_overdue: int = 0  # partitions past their warm days and not archived
    archive_overdue_seconds: float = 0.0  # since the warm days of the oldest of them ended


def model_of(*, table: str) -> PartitionedModel:
    return next(model for model in partitioned_models() if model._meta.db_table == table)


def start_of(*, interval: Interval, when: dt.datetime, steps: int = 0) -> dt.datetime:
    """Return the start (UTC) of the month or day of `when`, `steps` intervals later.

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
    """Return the partition of `model` that contains `when`, or the one `steps` intervals later."""
    interval = model.retention.interval
    since = start_of(interval=interval, when=when, steps=steps)
    until = start_of(interval=interval, when=since, steps=1)
    suffix = f"{since:%Y%m}" if interval == "month" else f"{since:%Y%m%d}"
    return Partition(f"{model._meta.db_table}_p{suffix}", since, until)


def make_missing(
    *,
    model: PartitionedModel,
    using: str = "owner",
    ahead: int | None = None,
) -> list[str]:
    """Make the missing partitions from one interval ago to `ahead` (default: `AHEAD`) from now.

    Each is made in its own transaction by LIKE and ATTACH, which block neither readers nor writers of the
    parent. Several calls at once are safe. Return the new names. Raise `OperationalError` if a lock was not
    free within two seconds; then call it again. The database's clock counts.
    """
    if ahead is None:
        ahead = AHEAD[model.retention.interval]
    now = read_database_time(using=using)
    near = [partition_at(model=model, when=now, steps=step) for step in range(-1, ahead + 1)]
    # Older ones were detached.
    wanted = {partition.name: partition for partition in near if partition.until + model.hot() > now}
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT name FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NULL ORDER BY 1",
            [list(wanted)],
        )
        missing = [wanted[name] for (name,) in cursor.fetchall()]
    return [partition.name for partition in missing if _make(model=model, partition=partition, using=using)]


def takes_row(*, among: Iterable[Partition], id_at: dt.datetime, created_at: dt.datetime) -> bool:
    """Return whether one of the partitions takes a row with the time `id_at` in its id."""
    return any(
        partition.since <= id_at < partition.until
        and partition.since - CLOCKS_APART <= created_at < partition.until + CLOCKS_APART
        for partition in among
    )


def _make(*, model: PartitionedModel, partition: Partition, using: str) -> bool:
    """Make one partition. Return False if another process has made it meanwhile."""
    quote = connections[using].ops.quote_name
    parent, table = quote(model._meta.db_table), quote(partition.name)
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '2s'")
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"partitions:{model._meta.db_table}"])
        # to_regclass would answer from a cache that a wait for an advisory lock does not refresh.
        cursor.execute(
            "SELECT FROM pg_class WHERE relname = %s AND relnamespace = current_schema()::regnamespace",
            [partition.name],
        )
        if cursor.fetchone() is not None:
            return False
        cursor.execute(
            f"CREATE TABLE {table} (LIKE {parent} "
            f"INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE) WITH ({_STORAGE})"
        )
        # This CHECK prunes filters on time, and refuses rows whose id's time differs from the database's.
        cursor.execute(
            compose(
                f"ALTER TABLE {table} ADD CONSTRAINT {quote(partition.name + CREATED_CHECK)} "
                f"CHECK (created_at >= %s AND created_at < %s)",
                [partition.since - CLOCKS_APART, partition.until + CLOCKS_APART],
                using=using,
            )
        )
        cursor.execute(
            compose(
                f"ALTER TABLE {parent} ATTACH PARTITION {table} FOR VALUES FROM (%s) TO (%s)",
                [str(id_floor(partition.since)), str(id_floor(partition.until))],
                using=using,
            )
        )
    log.info("partition made", partition=partition.name)
    return True


def compose(statement: str, values: Sequence[Any], *, using: str) -> str:
    """Write values into a statement that cannot have parameters, such as DDL."""
    text: str = connections[using].ops.compose_sql(statement, values)  # type: ignore[attr-defined]  # PostgreSQL's
    return text


class NotOwner(RuntimeError):
    """The database role does not own the partitioned tables."""


def require_owner(*, using: str = "owner") -> None:
    """Raise `NotOwner` unless this connection's role owns, and may make and drop, every partition."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT bool_and(pg_has_role(relowner, 'USAGE')) FROM pg_class"
            " WHERE oid = ANY(SELECT to_regclass(name) FROM unnest(%s::text[]) AS name)",
            [[model._meta.db_table for model in partitioned_models()]],
        )
        (is_owner,) = cursor.fetchone()
    if is_owner is False:
        raise NotOwner(
            "This database role does not own the partitioned tables. Set PARTITION_DATABASE_URL to the URL of"
            " the role that migrates."
        )


def ahead_among(*, model: PartitionedModel, now: dt.datetime, among: Sequence[Partition]) -> PartitionsAhead:
    """Count the partitions of `among` that follow the one of `now` without a gap.

    The number is -1 if even the present one is missing.
    """
    names = {partition.name for partition in among}
    steps, until = 0, now
    while (partition := partition_at(model=model, when=now, steps=steps)).name in names:
        steps, until = steps + 1, partition.until
    seconds = (until - now).total_seconds()
    return PartitionsAhead(model._meta.db_table, steps - 1, seconds)
