"""Do everything that the retention settings demand. `manage.py keep_partitions` runs it daily.

For each partitioned table, under a lock that only one run can hold:

- finish the steps of a killed run;
- detach partitions that are past their hot days and have no unfinished row;
- drop detached days of events after their grace;
- archive months of e-mails that are past their warm days, and rewrite cold files that have rows of an erased
  person;
- drop archived months after their grace, and delete cold files past their years.

Then purge the small tables. A run may be killed after every step: the next one continues from the catalogue,
the records and the store, and repeats no step.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import structlog
from django.conf import settings
from django.db import OperationalError
from django.db.models import F
from django.db.models.functions import Now

from retention import purge
from retention.cold_files import archive, storage
from retention.cold_files.manifest import ColdFileDiffers, Manifest
from retention.cold_files.storage import Tick
from retention.models import DetachedPartition
from retention.partitioned import PartitionedModel, partitioned_models
from retention.partitions import detach
from retention.partitions.catalogue import PartitionTable, has_table, partition_named, partition_tables
from retention.partitions.detach import PartitionHeld, StillPending, TableInUse
from retention.partitions.locks import OWNER_DATABASE, AlreadyRunning, Report, exclusive_lock
from retention.partitions.partitions import start_of
from retention.rows_of_person import end_waits, erase_from_cold_file, erasures_waiting_for
from retention.upkeep import ensure_all
from runtime.database.clock import read_database_time
from runtime.models import Heartbeat

log = structlog.get_logger(__name__)

#: The heartbeat of a complete rollover by keep_partitions.
ROLLED_OVER = "rollover"
#: The heartbeat of the last request for an early rollover.
REQUESTED = "rollover:requested"


def request() -> None:
    """Make keep_partitions run a rollover within a minute, even if the last one was recent."""
    Heartbeat.beat(name=REQUESTED)


def is_due(*, interval_seconds: float) -> bool:
    """Return whether the last complete rollover is `interval_seconds` ago, or one was requested since."""
    beats = Heartbeat.objects.filter(name__in=[ROLLED_OVER, REQUESTED])
    # One statement: ages from two statements would differ by the time between these.
    ages = dict(beats.annotate(passed=Now() - F("beat_at")).values_list("name", "passed"))
    age: dt.timedelta | None = ages.get(ROLLED_OVER)
    return age is None or age.total_seconds() >= interval_seconds or bool(ages.get(REQUESTED, age) < age)


@dataclasses.dataclass(slots=True)
class Rollover:
    """Steps that a run could not do. `held` and `failed` need an operator, `waiting` only another run."""

    held: list[PartitionHeld] = dataclasses.field(default_factory=list)
    failed: list[str] = dataclasses.field(default_factory=list)
    waiting: list[str] = dataclasses.field(default_factory=list)


def rollover(*, report: Report) -> Rollover:
    """Do all due steps, and return those that could not be done.

    Call `report(step, **facts)` after each step. An error of one partition stops neither the others nor the
    purges.
    """
    result = Rollover()
    for name in ensure_all():
        report("made", partition=name)
    for model in partitioned_models():
        try:
            with exclusive_lock(model=model):
                _Run(model, report, result).run()
        except AlreadyRunning as running:
            report("busy", table=model._meta.db_table)
            result.waiting.append(str(running))
    for table, rule in purge.rules():
        if gone := purge.purge(table=table, rule=rule):
            report("purged", table=table, rows=gone)
    return result


class _Run:
    """One run over one table."""

    def __init__(self, model: PartitionedModel, report: Report, result: Rollover) -> None:
        self.model, self.report, self.result = model, report, result
        self.now = read_database_time(using=OWNER_DATABASE)

    def run(self) -> None:
        for table in partition_tables(model=self.model):
            if table.state != "attached" or table.partition.until + self.model.hot() <= self.now:
                self._detach(table)
        records = DetachedPartition.objects.using(OWNER_DATABASE).filter(table=self.model._meta.db_table)
        for record in records.order_by("since"):
            try:
                self._finish(record)
            except OperationalError as error:
                self.result.waiting.append(f"{record.name}: {error}".strip())
            except Exception as error:  # each store has its own errors; continue with the next partition
                log.error("a detached partition stays as it is", partition=record.name, exc_info=error)
                self.report("failed", partition=record.name, reason=str(error))
                self.result.failed.append(f"{record.name}: {error}")

    def _detach(self, table: PartitionTable) -> None:
        """Detach one partition, in any state that a killed run may have left."""
        try:
            detach_from_any_state(model=self.model, table=table, report=self.report)
        except PartitionHeld as held:
            log.error("partition is held by unfinished rows", partition=table.name, reason=str(held))
            self.report("held", partition=table.name, reason=str(held))
            self.result.held.append(held)
        except (StillPending, TableInUse, OperationalError) as error:
            self.result.waiting.append(f"{table.name}: {error}".strip())

    def _finish(self, record: DetachedPartition) -> None:
        """Do all due steps of a detached partition."""
        warm = self.model.warm()
        if warm is None:
            self._drop(record, since=record.detached_at)
        elif record.archived_at is not None:
            self._keep_cold_file(record)
        elif record.until + warm <= self.now:
            archive_partition(record=record, report=self.report)

    def _keep_cold_file(self, record: DetachedPartition) -> None:
        """Do all due steps of an archived partition."""
        if record.deleted_at is not None:
            return
        if record.dropped_at is not None:
            # Do this before the file is looked for. A killed run may have deleted it.
            if years_after(record.until, settings.ARCHIVE_YEARS) <= self.now:
                delete_cold_file(record=record, report=self.report)
                return
            storage.check_present(manifest=Manifest.of(record))
        before = start_of(interval="month", when=self.now)
        erase_from_cold_file(model=self.model, record=record, report=self.report, before=before)
        # Also just after an erasure changed the cold file: daily erasures would keep the table.
        self._drop(record, since=record.archived_at)

    def _drop(self, record: DetachedPartition, *, since: dt.datetime | None) -> None:
        """Drop the table if its grace since the last step is over."""
        grace = dt.timedelta(days=settings.PARTITION_GRACE_DAYS)
        if record.dropped_at is not None or since is None or since + grace > self.now:
            return
        drop_partition(model=self.model, record=record, report=self.report)


def detach_from_any_state(*, model: PartitionedModel, table: PartitionTable, report: Report) -> None:
    """Detach and record a partition that is attached, half detached, or detached but not recorded."""
    if table.state == "attached":
        detach.detach(model=model, name=table.name, report=report)
    elif table.state == "pending":
        detach.finish_detach(model=model, name=table.name, report=report)
    elif not DetachedPartition.objects.using(OWNER_DATABASE).filter(name=table.name).exists():
        detach.record_or_reattach(model=model, name=table.name, report=report)


def archive_partition(*, record: DetachedPartition, report: Report) -> None:
    """Archive a detached partition and record it, or record the cold file that a killed run wrote."""
    manifest = archive.find_unrecorded(record=record)
    if manifest is None:
        manifest = archive.write_cold_file(record=record, tick=ticker(record.name, report))
        report("cold file written", partition=record.name, file=manifest.file)
    record.manifest = dataclasses.asdict(manifest)
    record.archived_at = read_database_time(using=OWNER_DATABASE)
    record.save(using=OWNER_DATABASE, update_fields=["manifest", "archived_at"])
    report("archived", partition=record.name, rows=manifest.rows, bytes=manifest.file_bytes)
    if swept := archive.delete_unrecorded(record=record):
        report("swept", partition=record.name, files=swept)


def ticker(name: str, report: Report) -> Tick:
    """Return a function that reports the bytes of a partition's CSV as they pass."""
    return lambda count: report("bytes", partition=name, bytes=count)


def drop_partition(*, model: PartitionedModel, record: DetachedPartition, report: Report) -> None:
    """Drop a detached table: a day of finished events, or a month of e-mails that equals its archive.

    Raise `PartitionHeld` for an unfinished event, and `ColdFileDiffers` if the cold file differs or is
    missing, or if the record is not of a partition.
    """
    if partition_named(model=model, name=record.name) is None:
        raise ColdFileDiffers(f"{record.name!r} is no partition of {model._meta.db_table}.")
    if model.warm() is not None:
        _compare(record, report)
    elif has_table(name=record.name):
        detach.check_finished(model=model, name=record.name)
    detach.drop(record=record, report=report)
    record.refresh_from_db(using=OWNER_DATABASE)


def _compare(record: DetachedPartition, report: Report) -> None:
    manifest = Manifest.of(record)
    table = record.name if has_table(name=record.name) else ""
    try:
        archive.verify(manifest=manifest, table=table, tick=ticker(record.name, report))
    except ColdFileDiffers:
        if table:  # the next run writes the cold file again
            record.archived_at = None
            record.save(using=OWNER_DATABASE, update_fields=["archived_at"])
        raise
    report("compared", partition=record.name)


def delete_cold_file(*, record: DetachedPartition, report: Report) -> None:
    """Delete a cold file that is past its years. Keep the record and its manifest.

    No erasure waits for the cold file any more.
    """
    for name in storage.stored_names(record=record):
        storage.store().delete(name)
    end_waits(record=record, erasures=erasures_waiting_for(record=record))
    record.deleted_at = read_database_time(using=OWNER_DATABASE)
    record.save(using=OWNER_DATABASE, update_fields=["deleted_at"])
    report("cold file deleted", partition=record.name)


def years_after(when: dt.datetime, years: int) -> dt.datetime:
    """Return the same day so many years later. 29 February becomes 1 March if that year has none.

    >>> years_after(dt.datetime(2028, 2, 29, tzinfo=dt.UTC), 7).isoformat()
    '2035-03-01T00:00:00+00:00'
    """
    try:
        return when.replace(year=when.year + years)
    except ValueError:
        return when.replace(year=when.year + years, month=3, day=1)


def log_step(step: str, **facts: Any) -> None:
    """Log a step. This is the `report` of a rollover without a terminal."""
    if step != "bytes":
        log.info("rollover", step=step, **facts)
