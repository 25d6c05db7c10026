"""Takes old partitions away from their table: detach, re-attach, drop. Nothing unfinished ever leaves.

A detach is refused while the partition has unfinished rows, and undone when one appears afterwards (a
resend came between). It never blocks a reader or writer of the table: DETACH CONCURRENTLY waits for the
transactions that were there before it, and holds no lock that they or later ones want. If its wait is cut
short, the partition is left *pending*: already invisible. It is then finished at once, here, by whoever
runs next. Called by outbox.retention and `manage.py partitions`, on the direct connection, in autocommit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import structlog
from django.db import OperationalError, connections
from django.db.backends.utils import CursorWrapper
from django.db.models.functions import Now

from outbox.core.ids import id_floor
from outbox.core.partitioned import PartitionedModel
from outbox.models import RetiredPartition
from outbox.retention.partitions import Partition, partition_at, written

log = structlog.get_logger(__name__)

State = Literal["attached", "pending", "detached"]
Report = Callable[..., None]  # report(step, **facts): progress, one line for each step done

LOCK_TIMEOUT = "5s"
#: How long a lock or another session's transaction is waited for in all before a run gives up.
PATIENCE = 600.0
COUNTED = 1000
_LOCK = "retire:"


class Busy(RuntimeError):
    """Another run is at the same table."""


class StillPending(RuntimeError):
    """A detach could not be finished: another session's transaction is older and still open."""


class Held(RuntimeError):
    """A partition has unfinished rows, so it stays."""

    def __init__(self, partition: str, holds: Sequence[Hold], advice: str) -> None:
        self.partition, self.holds, self.advice = partition, holds, advice
        rows = "; ".join(str(hold) for hold in holds)
        super().__init__(f"{partition} stays: {rows}. {advice}")


@dataclasses.dataclass(frozen=True, slots=True)
class Hold:
    """Unfinished rows of one kind in a partition: how many (to `COUNTED`), and the first few."""

    kind: str
    count: int
    ids: Sequence[uuid.UUID]

    def __str__(self) -> str:
        count = f"{COUNTED} or more" if self.count >= COUNTED else str(self.count)
        more = " …" if self.count > len(self.ids) else ""
        return f"{count} {self.kind} ({', '.join(str(id) for id in self.ids)}{more})"


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """A table that is or was a partition, from the catalogue."""

    partition: Partition
    state: State
    bytes: int
    rows: int  # as last estimated by ANALYZE

    @property
    def name(self) -> str:
        """The table's name."""
        return self.partition.name


def tables(*, model: PartitionedModel, using: str = "direct") -> list[Table]:
    """This function will list the partitions of `model` that exist, attached or not, oldest first."""
    parent = model._meta.db_table
    with connections[using].cursor() as cursor:
        cursor.execute(
            """
            SELECT c.relname, pg_total_relation_size(c.oid), greatest(c.reltuples, 0)::bigint,
                   CASE WHEN i.inhrelid IS NULL THEN 'detached'
                        WHEN i.inhdetachpending THEN 'pending' ELSE 'attached' END
            FROM pg_class AS c LEFT JOIN pg_inherits AS i
                ON i.inhrelid = c.oid AND i.inhparent = to_regclass(%s)
            WHERE c.relkind = 'r' AND c.relname ~ %s AND pg_table_is_visible(c.oid)
            """,
            [parent, f"^{parent}_p[0-9]+$"],
        )
        found = [
            Table(partition, state, size, rows)
            for name, size, rows, state in cursor.fetchall()
            if (partition := partition_named(model=model, name=name))
        ]
    return sorted(found, key=lambda table: table.partition.since)


def partition_named(*, model: PartitionedModel, name: str) -> Partition | None:
    """This function will read a partition's bounds from its name; None if no partition is named so."""
    stamp = re.fullmatch(rf"{re.escape(model._meta.db_table)}_p(\d{{4}})(\d\d)(\d\d)?", name)
    if stamp is None or (stamp[3] is None) != (model.retention.interval == "month"):
        return None
    try:
        when = dt.datetime(int(stamp[1]), int(stamp[2]), int(stamp[3] or 1), tzinfo=dt.UTC)
    except ValueError:
        return None
    return partition_at(model=model, when=when)


def exists(*, name: str, using: str = "direct") -> bool:
    """This function will say whether there is a table of that name."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [connections[using].ops.quote_name(name)])
        return bool(cursor.fetchone()[0])


@contextlib.contextmanager
def alone(*, model: PartitionedModel, using: str = "direct", patience: float = 0.0) -> Iterator[None]:
    """This function will keep other runs from the same table meanwhile.

    A session's advisory lock: PostgreSQL frees it when the process dies. Raises `Busy` if another run has
    it and goes on having it for `patience` seconds.
    """
    key = f"{_LOCK}{model._meta.db_table}"
    deadline = time.monotonic() + patience
    with connections[using].cursor() as cursor:
        while True:
            cursor.execute("SELECT pg_try_advisory_lock(hashtext(%s))", [key])
            if cursor.fetchone()[0]:
                break
            if time.monotonic() >= deadline:
                raise Busy(f"another run is at {model._meta.db_table}; try again when it is done")
            time.sleep(0.5)
    try:
        yield
    finally:
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(hashtext(%s))", [key])


def holds(*, model: PartitionedModel, name: str, using: str = "direct") -> list[Hold]:
    """This function will say what is unfinished in a partition, attached or not; reads few rows."""
    table = connections[using].ops.quote_name(name)
    found = []
    with connections[using].cursor() as cursor:
        for kind, condition in model.retention.unfinished.items():
            cursor.execute(f"SELECT id FROM {table} WHERE {condition} LIMIT {COUNTED}")  # noqa: S608
            ids = sorted(id for (id,) in cursor.fetchall())
            if ids:
                found.append(Hold(kind, len(ids), ids[:3]))
    return found


def check_finished(*, model: PartitionedModel, name: str, using: str = "direct") -> None:
    """This function will raise `Held` if the partition has unfinished rows."""
    if found := holds(model=model, name=name, using=using):
        raise Held(name, found, model.retention.unfinished_help)


def detach(
    *,
    model: PartitionedModel,
    name: str,
    using: str = "direct",
    report: Report,
    lock_timeout: str = LOCK_TIMEOUT,
    patience: float = PATIENCE,
) -> None:
    """This function will detach a partition and record it, or leave it attached and raise `Held`.

    The caller is `alone`. Raises `StillPending` when another session kept it from ending within `patience`
    seconds; the next run goes on from there.
    """
    check_finished(model=model, name=name, using=using)
    report("detaching", partition=name)
    try:
        _alter(
            model,
            f"DETACH PARTITION {connections[using].ops.quote_name(name)} CONCURRENTLY",
            using,
            lock_timeout,
        )
    except OperationalError as error:
        if _state(model, name, using) == "attached":
            raise
        log.warning("detach was cut short, finishing it", partition=name, error=str(error).strip())
        finish(
            model=model, name=name, using=using, report=report, lock_timeout=lock_timeout, patience=patience
        )
        return
    report("detached", partition=name)
    settle(model=model, name=name, using=using, report=report)


def finish(
    *,
    model: PartitionedModel,
    name: str,
    using: str = "direct",
    report: Report,
    lock_timeout: str = LOCK_TIMEOUT,
    patience: float = PATIENCE,
) -> None:
    """This function will finish a detach that was cut short; its rows are invisible until then."""
    deadline = time.monotonic() + patience
    pause = 0.1
    while _state(model, name, using) == "pending":
        try:
            _alter(
                model,
                f"DETACH PARTITION {connections[using].ops.quote_name(name)} FINALIZE",
                using,
                lock_timeout,
            )
        except OperationalError as error:
            if time.monotonic() > deadline:
                log.error("a detach hangs: its rows are invisible until it ends", partition=name)
                raise StillPending(
                    f"{name} is half detached, so its rows are invisible: a session that is older keeps it so"
                    " (pg_stat_activity, the oldest xact_start). End that session and run again."
                ) from error
            time.sleep(pause)
            pause = min(pause * 2, 5.0)
    report("detached", partition=name)
    settle(model=model, name=name, using=using, report=report)


def settle(*, model: PartitionedModel, name: str, using: str = "direct", report: Report) -> None:
    """This function will record a detached partition, or re-attach it and raise `Held` if it is unfinished.

    Nobody can change its rows any more, so this look is the last word.
    """
    try:
        check_finished(model=model, name=name, using=using)
    except Held:
        attach(model=model, name=name, using=using)
        report("attached again", partition=name)
        raise
    partition = partition_named(model=model, name=name)
    assert partition is not None
    _, made = RetiredPartition.objects.using(using).get_or_create(
        name=name,
        defaults={"table": model._meta.db_table, "since": partition.since, "until": partition.until},
    )
    if made:
        report("recorded", partition=name)


def attach(
    *, model: PartitionedModel, name: str, using: str = "direct", lock_timeout: str = LOCK_TIMEOUT
) -> None:
    """This function will attach a detached partition again, where it was, and forget its record."""
    partition = partition_named(model=model, name=name)
    assert partition is not None
    parent, table = (connections[using].ops.quote_name(one) for one in (model._meta.db_table, name))
    bounds = [str(id_floor(partition.since)), str(id_floor(partition.until))]
    with _impatient(using, lock_timeout) as cursor:
        # DETACH CONCURRENTLY left a CHECK that says the same as the bounds, so no row is read.
        statement = f"ALTER TABLE {parent} ATTACH PARTITION {table} FOR VALUES FROM (%s) TO (%s)"
        cursor.execute(written(statement, bounds, using=using))
    RetiredPartition.objects.using(using).filter(name=name).delete()
    log.info("partition attached again", partition=name)


def drop(
    *, record: RetiredPartition, using: str = "direct", report: Report, lock_timeout: str = LOCK_TIMEOUT
) -> None:
    """This function will drop a detached table and record it. The caller has verified its archive."""
    with _impatient(using, lock_timeout) as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {connections[using].ops.quote_name(record.name)}")
    report("dropped", partition=record.name)
    RetiredPartition.objects.using(using).filter(name=record.name).update(dropped_at=Now())
    report("drop recorded", partition=record.name)


def drop_restored(*, name: str, using: str = "direct", lock_timeout: str = LOCK_TIMEOUT) -> None:
    """This function will drop a table that an archive was restored into."""
    with _impatient(using, lock_timeout) as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {connections[using].ops.quote_name(name)}")


def _state(model: PartitionedModel, name: str, using: str) -> State | None:
    return next((table.state for table in tables(model=model, using=using) if table.name == name), None)


def _alter(model: PartitionedModel, change: str, using: str, lock_timeout: str) -> None:
    parent = connections[using].ops.quote_name(model._meta.db_table)
    with _impatient(using, lock_timeout) as cursor:
        cursor.execute(f"ALTER TABLE {parent} {change}")


@contextlib.contextmanager
def _impatient(using: str, lock_timeout: str) -> Iterator[CursorWrapper]:
    """A cursor in autocommit that waits for each lock at most so long."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, false)", [lock_timeout])
        try:
            yield cursor
        finally:
            if not connections[using].connection.closed:
                cursor.execute("SELECT set_config('lock_timeout', '0', false)")
