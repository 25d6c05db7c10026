"""The policy of what is kept how long: what beat does daily and `manage.py partitions rollover` by hand.

For each partitioned table, under a lock that only one run can have: finish what a killed run left, detach
what is older than its hot days and wholly finished, archive what is detached, drop what is archived and past
its grace. Then rewrite archives that hold a person who was erased, delete archives past their years, and
purge the small tables. Every step may be the last before a crash: the next run goes on from the catalogue,
the records and the store, and repeats no step that is done.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Iterable
from typing import Any

import structlog
from django.conf import settings
from django.db import OperationalError, transaction

from outbox.core.clock import database_now
from outbox.core.partitioned import PartitionedModel
from outbox.models import Erasure, RetiredPartition
from outbox.retention import archive, purge
from outbox.retention import detach as retire
from outbox.retention.detach import Busy, Held, Report, StillPending
from outbox.retention.erasure import erase_rows
from outbox.retention.partitions import ensure_all, partitioned_models, start_of

log = structlog.get_logger(__name__)


@dataclasses.dataclass(slots=True)
class Rollover:
    """What a run could not do: `held` needs a person, `waiting` only another run."""

    held: list[Held] = dataclasses.field(default_factory=list)
    failed: list[str] = dataclasses.field(default_factory=list)
    waiting: list[str] = dataclasses.field(default_factory=list)


def rollover(*, report: Report, using: str = "direct", dry_run: bool = False) -> Rollover:
    """This function will do all that is due, and say what is held and what has to wait.

    `report(step, **facts)` is called after each step; with `dry_run` steps are only reported, as
    "would …". One partition's trouble stops neither the others nor the purges.
    """
    result = Rollover()
    if not dry_run:
        for name in ensure_all(using=using):
            report("made", partition=name)
    for model in partitioned_models():
        try:
            with retire.alone(model=model, using=using):
                _roll(model, using, report, dry_run, result)
        except Busy as busy:
            report("busy", table=model._meta.db_table)
            result.waiting.append(str(busy))
    for rule in purge.rules():
        if dry_run:
            report("would purge", table=rule.table, days=rule.days)
        elif gone := purge.purge(rule=rule, using=using):
            report("purged", table=rule.table, rows=gone)
    return result


def _roll(model: PartitionedModel, using: str, report: Report, dry_run: bool, result: Rollover) -> None:
    now = database_now(using=using)
    for table in retire.tables(model=model, using=using):
        over = table.partition.until + model.hot() <= now
        if table.state == "attached" and not over:
            continue
        if dry_run:
            if table.state == "attached":
                found = retire.holds(model=model, name=table.name, using=using)
                report("would be held" if found else "would detach", partition=table.name, rows=table.rows)
            continue
        try:
            _leave(model, table, using, report)
        except Held as held:
            log.error("partition is held by unfinished rows", partition=table.name, reason=str(held))
            report("held", partition=table.name, reason=str(held))
            result.held.append(held)
        except (StillPending, OperationalError) as error:
            result.waiting.append(f"{table.name}: {error}".strip())
    for record in RetiredPartition.objects.using(using).filter(table=model._meta.db_table).order_by("since"):
        try:
            _end(model, record, using, now, report, dry_run)
        except OperationalError as error:
            result.waiting.append(f"{record.name}: {error}".strip())
        except Exception as error:  # a store has errors of its own; the next partition goes on
            log.error("a retired partition stays as it is", partition=record.name, exc_info=error)
            report("failed", partition=record.name, reason=str(error))
            result.failed.append(f"{record.name}: {error}")


def _leave(model: PartitionedModel, table: retire.Table, using: str, report: Report) -> None:
    """Bring a partition that is due out of its table, from whatever state a killed run left it in."""
    if table.state == "attached":
        retire.detach(model=model, name=table.name, using=using, report=report)
    elif table.state == "pending":
        retire.finish(model=model, name=table.name, using=using, report=report)
    elif not RetiredPartition.objects.using(using).filter(name=table.name).exists():
        retire.settle(model=model, name=table.name, using=using, report=report)


def _end(
    model: PartitionedModel,
    record: RetiredPartition,
    using: str,
    now: dt.datetime,
    report: Report,
    dry_run: bool,
) -> None:
    """Do what is due for a partition that has left its table."""
    if record.deleted_at is not None:
        return
    if record.archived_at is None:
        if dry_run:
            report("would archive", partition=record.name)
            return
        archive_partition(record=record, using=using, report=report)
    if not dry_run:
        rewrite_archive(
            model=model,
            record=record,
            using=using,
            report=report,
            before=start_of(interval="month", when=now),
        )
    if (
        record.dropped_at is None
        and record.detached_at + dt.timedelta(days=settings.PARTITION_GRACE_DAYS) <= now
    ):
        if dry_run:
            report("would drop", partition=record.name)
        else:
            drop_partition(record=record, using=using, report=report)
    if record.dropped_at is not None and years_after(record.until, settings.ARCHIVE_YEARS) <= now:
        if dry_run:
            report("would delete the archive", partition=record.name)
        else:
            delete_archive(record=record, using=using, report=report)


def archive_partition(*, record: RetiredPartition, using: str = "direct", report: Report) -> None:
    """This function will archive a detached partition and record it, or record what a killed run wrote."""
    manifest = archive.adopt(record=record, using=using)
    if manifest is None:
        manifest = archive.write(record=record, using=using, tick=_ticker(record, report))
        report("archive written", partition=record.name, file=manifest.file)
    record.manifest, record.archived_at = dataclasses.asdict(manifest), database_now(using=using)
    record.save(using=using, update_fields=["manifest", "archived_at"])
    report("archived", partition=record.name, rows=manifest.rows, bytes=manifest.file_bytes)
    if swept := archive.sweep(record=record):
        report("swept", partition=record.name, files=swept)


def _ticker(record: RetiredPartition, report: Report) -> archive.Tick:
    return lambda count: report("bytes", partition=record.name, bytes=count)


def drop_partition(*, record: RetiredPartition, using: str = "direct", report: Report) -> None:
    """This function will compare a detached table with its archive once more and drop it.

    Raises `ArchiveDiffers` if they are not the same, or nothing is archived.
    """
    manifest = archive.Manifest.of(record)
    table = record.name if retire.exists(name=record.name, using=using) else ""
    archive.verify(manifest=manifest, using=using, table=table, tick=_ticker(record, report))
    report("compared", partition=record.name)
    retire.drop(record=record, using=using, report=report)
    record.refresh_from_db(using=using)


def delete_archive(*, record: RetiredPartition, using: str = "direct", report: Report) -> None:
    """This function will delete an archive that is past its years; its record and manifest stay."""
    archive.delete(record=record)
    record.deleted_at = database_now(using=using)
    record.save(using=using, update_fields=["deleted_at"])
    report("archive deleted", partition=record.name)


def rewrite_archive(
    *,
    model: PartitionedModel,
    record: RetiredPartition,
    using: str = "direct",
    report: Report,
    before: dt.datetime | None = None,
) -> int:
    """This function will erase from an archive the persons who are still to be erased from it.

    While its table is there, the archive is written anew from that. A later one is restored, changed and
    written anew, for all persons at once: only if one of them asked before `before` (a month's start, so
    once a month), or always without it. Returns the number of rows changed.
    """
    waiting = list(Erasure.objects.using(using).filter(archives__contains=[record.name]))
    late = before is None or any(erasure.requested_at < before for erasure in waiting)
    if not waiting or not (late or record.dropped_at is None):
        return 0
    owners = {uuid.UUID(id) for erasure in waiting for id in erasure.owner_ids}

    def erase(table: str) -> int:
        return erase_rows(model=model, owner_ids=list(owners), using=using, table=table)

    if record.dropped_at is None:
        changed = erase(record.name)
        manifest = archive.adopt(record=record, using=using) or archive.write(record=record, using=using)
        record.manifest = dataclasses.asdict(manifest)
        record.save(using=using, update_fields=["manifest"])
        archive.sweep(record=record)
    else:
        named = {str(owner) for owner in owners}
        theirs = archive.find(record=record, wanted=lambda row: row[model.retention.owner_column] in named)
        changed = archive.rewrite(record=record, using=using, change=erase) if any(theirs) else 0
    for erasure in waiting:
        with transaction.atomic(using=using):
            fresh = Erasure.objects.using(using).select_for_update().get(id=erasure.id)
            fresh.archives = [name for name in fresh.archives if name != record.name]
            fresh.save(using=using, update_fields=["archives"])
    report("archive rewritten", partition=record.name, rows=changed)
    return changed


def overview(*, using: str = "direct") -> list[dict[str, Any]]:
    """This function will list every partition there is or was: range, state, size, rows and what holds it."""
    now = database_now(using=using)
    lines = []
    for model in partitioned_models():
        table_name = model._meta.db_table
        records = {one.name: one for one in RetiredPartition.objects.using(using).filter(table=table_name)}
        tables = {one.name: one for one in retire.tables(model=model, using=using)}
        for name in sorted(records.keys() | tables.keys()):
            table, record = tables.get(name), records.get(name)
            manifest = (record.manifest if record else None) or {}
            bounds = table.partition if table else record
            assert bounds is not None
            holds = retire.holds(model=model, name=name, using=using) if table else []
            over = bounds.until + model.hot() <= now
            lines.append(
                {
                    "table": table_name,
                    "partition": name,
                    "since": bounds.since.date().isoformat(),
                    "until": bounds.until.date().isoformat(),
                    "state": _state(table, record),
                    "bytes": table.bytes if table else 0,
                    "rows": table.rows if table else manifest.get("rows"),
                    "unfinished": sum(hold.count for hold in holds),
                    "held": bool(over and holds),
                    "help": model.retention.unfinished_help,
                    "archive": manifest.get("file") if record and not record.deleted_at else None,
                }
            )
    return lines


def _state(table: retire.Table | None, record: RetiredPartition | None) -> str:
    if table is not None and table.state != "detached":
        return table.state
    if record is None:
        return "detached"
    if record.deleted_at:
        return "deleted"
    if record.dropped_at:
        return "archived"
    return "detached, archived" if record.archived_at else "detached"


def years_after(when: dt.datetime, years: int) -> dt.datetime:
    """This function will give the same day so many years later; 29 February becomes 1 March.

    >>> years_after(dt.datetime(2028, 2, 29, tzinfo=dt.UTC), 7).isoformat()
    '2035-03-01T00:00:00+00:00'
    """
    try:
        return when.replace(year=when.year + years)
    except ValueError:
        return when.replace(year=when.year + years, month=3, day=1)


def records(*, table: str, since: dt.datetime, using: str = "direct") -> Iterable[RetiredPartition]:
    """This function will list the partitions with an archive that may hold ids made at `since` or later."""
    return (
        RetiredPartition.objects.using(using)
        .filter(table=table, until__gt=since, archived_at__isnull=False, deleted_at=None)
        .order_by("since")
    )
