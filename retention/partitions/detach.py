"""Detach old partitions from their table, attach them again, drop them. Unfinished rows stay in the table.

A detach is refused while the partition has unfinished rows, and undone if one appears afterwards, for example
by a resend. It never blocks readers or writers of the table: DETACH CONCURRENTLY waits for older transactions
without a lock that others want. If that wait is interrupted, the partition is *pending*, with its rows
already invisible, and the next caller must finish the detach at once. To keep this rare, a detach first waits
until the transactions that use the table have ended, and does not begin while a long one does, such as
pg_dump's. All of it needs the owner's direct connection, in autocommit.
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Sequence

import structlog
from django.db import OperationalError, connections
from django.db.models.functions import Now

from retention.models import DetachedPartition
from retention.partitioned import PartitionedModel
from retention.partitions.catalogue import partition_named, state_of
from retention.partitions.locks import OWNER_DATABASE, Report, short_lock_timeout
from retention.partitions.partitions import compose
from runtime.database.ids import id_floor

log = structlog.get_logger(__name__)

#: The total wait for locks and other sessions' transactions before a run gives up.
PATIENCE_SECONDS = 600.0
#: How long a detach waits for transactions that began before it.
READERS_SECONDS = 60.0
COUNTED = 1000


class StillPending(RuntimeError):
    """A detach could not be finished: an older transaction of another session is still open."""


class TableInUse(RuntimeError):
    """An older transaction of another session uses the table. No detach was begun."""


class PartitionHeld(RuntimeError):
    """A partition has unfinished rows and stays attached."""

    def __init__(self, partition: str, holds: Sequence[HoldingRows], advice: str) -> None:
        self.partition = partition
        rows = "; ".join(str(hold) for hold in holds)
        super().__init__(f"{partition} has unfinished rows: {rows}. {advice}")


@dataclasses.dataclass(frozen=True, slots=True)
class HoldingRows:
    """Unfinished rows of one kind in a partition: their count (at most `COUNTED`), and the first ids."""

    kind: str
    count: int
    ids: Sequence[uuid.UUID]

    def __str__(self) -> str:
        count = f"{COUNTED} or more" if self.count >= COUNTED else str(self.count)
        more = " …" if self.count > len(self.ids) else ""
        return f"{count} {self.kind} ({', '.join(str(id) for id in self.ids)}{more})"


def find_holds(*, model: PartitionedModel, name: str) -> list[HoldingRows]:
    """List the unfinished rows of a partition, attached or not. Read at most `COUNTED` rows of each kind."""
    table = connections[OWNER_DATABASE].ops.quote_name(name)
    holds = []
    with connections[OWNER_DATABASE].cursor() as cursor:
        for kind, condition in model.retention.unfinished.items():
            cursor.execute(f"SELECT id FROM {table} WHERE {condition} LIMIT {COUNTED}")  # noqa: S608
            ids = sorted(id for (id,) in cursor.fetchall())
            if ids:
                holds.append(HoldingRows(kind, len(ids), ids[:3]))
    return holds


def count_unfinished(
    *, model: PartitionedModel, names: Sequence[str], using: str = "owner"
) -> dict[str, int]:
    """Count the unfinished rows of each partition in one statement, at most `COUNTED` of each kind."""
    if not names:
        return {}
    quote = connections[using].ops.quote_name
    counts = [
        " + ".join(
            f"(SELECT count(*) FROM (SELECT 1 FROM {quote(name)} WHERE {condition} LIMIT {COUNTED}) AS few)"  # noqa: S608
            for condition in model.retention.unfinished.values()
        )
        for name in names
    ]
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT " + ", ".join(counts))
        return dict(zip(names, cursor.fetchone(), strict=True))


def check_finished(*, model: PartitionedModel, name: str) -> None:
    if holds := find_holds(model=model, name=name):
        raise PartitionHeld(name, holds, model.retention.unfinished_help)


def detach(*, model: PartitionedModel, name: str, report: Report) -> None:
    """Detach a partition and record it, or leave it attached and raise `PartitionHeld`.

    The caller holds `exclusive_lock`. Raise `TableInUse`, or `StillPending` if a session that began meanwhile
    blocks the detach for longer than `PATIENCE_SECONDS`. The next run continues it.
    """
    check_finished(model=model, name=name)
    wait_for_readers(model=model)
    report("detaching", partition=name)
    try:
        _alter(model, name, "CONCURRENTLY")
    except OperationalError as error:
        if state_of(model=model, name=name) == "attached":
            raise
        log.warning("detach was cut short, finishing it", partition=name, error=str(error).strip())
        finish_detach(model=model, name=name, report=report)
        return
    report("detached", partition=name)
    record_or_reattach(model=model, name=name, report=report)


def wait_for_readers(*, model: PartitionedModel) -> None:
    """Wait until the transactions that now use a table have ended. A detach would wait for them.

    Raise `TableInUse` after `READERS_SECONDS`.
    """
    deadline = time.monotonic() + READERS_SECONDS
    older = _readers(model)
    while older:
        if time.monotonic() > deadline:
            raise TableInUse(
                f"{model._meta.db_table} is used by a long transaction, such as pg_dump's, of process"
                f" {min(older.values())} (pg_stat_activity). The next run tries again."
            )
        time.sleep(0.1)
        present = _readers(model)
        older = {name: pid for name, pid in older.items() if name in present}


def _readers(model: PartitionedModel) -> dict[str, int]:
    """Return the other sessions' transactions that have a lock of a table, with their processes."""
    with connections[OWNER_DATABASE].cursor() as cursor:
        cursor.execute(
            "SELECT virtualtransaction, pid FROM pg_locks WHERE relation = to_regclass(%s) AND granted"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            " AND pid <> pg_backend_pid()",
            [connections[OWNER_DATABASE].ops.quote_name(model._meta.db_table)],
        )
        return dict(cursor.fetchall())


def finish_detach(*, model: PartitionedModel, name: str, report: Report) -> None:
    """Finish an interrupted detach, whose rows are invisible until then. Record it, or attach it again."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = 0.1
    while state_of(model=model, name=name) == "pending":
        try:
            _alter(model, name, "FINALIZE")
        except OperationalError as error:
            if time.monotonic() > deadline:
                log.error("a detach hangs: its rows are invisible until it ends", partition=name)
                raise StillPending(
                    f"{name} is half detached, so its rows are invisible, because an older session blocks it"
                    " (pg_stat_activity, the oldest xact_start). End that session and run again."
                ) from error
            time.sleep(pause)
            pause = min(pause * 2, 5.0)
    report("detached", partition=name)
    record_or_reattach(model=model, name=name, report=report)


def record_or_reattach(*, model: PartitionedModel, name: str, report: Report) -> None:
    """Record a detached partition. If it has unfinished rows, attach it again and raise `PartitionHeld`.

    The check is final: nothing claims or resends rows of a detached partition.
    """
    try:
        check_finished(model=model, name=name)
    except PartitionHeld:
        attach(model=model, name=name)
        report("attached again", partition=name)
        raise
    partition = partition_named(model=model, name=name)
    assert partition is not None
    _, made = DetachedPartition.objects.using(OWNER_DATABASE).get_or_create(
        name=name,
        defaults={"table": model._meta.db_table, "since": partition.since, "until": partition.until},
    )
    if made:
        report("recorded", partition=name)


def attach(*, model: PartitionedModel, name: str) -> None:
    """Attach a detached partition with its old bounds, and delete its record."""
    partition = partition_named(model=model, name=name)
    assert partition is not None
    parent, table = (
        connections[OWNER_DATABASE].ops.quote_name(table_name) for table_name in (model._meta.db_table, name)
    )
    bounds = [str(id_floor(partition.since)), str(id_floor(partition.until))]
    with short_lock_timeout() as cursor:
        # DETACH CONCURRENTLY left a CHECK that equals the bounds. PostgreSQL reads no row.
        statement = f"ALTER TABLE {parent} ATTACH PARTITION {table} FOR VALUES FROM (%s) TO (%s)"
        cursor.execute(compose(statement, bounds, using=OWNER_DATABASE))
    DetachedPartition.objects.using(OWNER_DATABASE).filter(name=name).delete()
    log.info("partition attached again", partition=name)


def drop(*, record: DetachedPartition, report: Report) -> None:
    """Drop a detached table and record it. The caller has checked that it is not needed any more."""
    with short_lock_timeout() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {connections[OWNER_DATABASE].ops.quote_name(record.name)}")
    report("dropped", partition=record.name)
    DetachedPartition.objects.using(OWNER_DATABASE).filter(name=record.name).update(dropped_at=Now())
    report("drop recorded", partition=record.name)


def _alter(model: PartitionedModel, name: str, how: str) -> None:
    parent, partition = (
        connections[OWNER_DATABASE].ops.quote_name(table_name) for table_name in (model._meta.db_table, name)
    )
    with short_lock_timeout() as cursor:
        cursor.execute(f"ALTER TABLE {parent} DETACH PARTITION {partition} {how}")
