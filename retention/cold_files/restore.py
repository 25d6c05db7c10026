"""Load a cold file into a table next to the live one, and replace cold files by changed ones."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

from django.db import connections, transaction

from retention.cold_files import archive, storage
from retention.cold_files.manifest import ColdFileDiffers, Manifest
from retention.cold_files.storage import Tick, ignore_ticks
from retention.cold_files.table_copy import columns_of
from retention.models import DetachedPartition
from retention.partitions.catalogue import has_table
from retention.partitions.locks import OWNER_DATABASE, short_lock_timeout

RESTORED = "_restored"
_REWRITTEN = "_rewritten"


def restore(*, record: DetachedPartition, suffix: str = RESTORED, tick: Tick = ignore_ticks) -> str:
    """Load a cold file into a new table next to the live one, and return the table's name.

    One transaction streams the cold file once through COPY, and compares the table with the manifest before
    it commits. It is never idle while the store is read. Raise `ColdFileDiffers`, also if the table exists.
    """
    manifest = Manifest.of(record)
    name = manifest.partition + suffix
    quote = connections[OWNER_DATABASE].ops.quote_name
    chunks = storage.read_csv(manifest=manifest, tick=tick)
    first = next(chunks, b"")  # before the transaction: a store may be slow to open
    with transaction.atomic(using=OWNER_DATABASE), connections[OWNER_DATABASE].cursor() as cursor:
        if has_table(name=name):
            raise ColdFileDiffers(
                f"The table {name} already exists. Drop it first: `partitions drop {name}`."
            )
        _check_types(manifest)
        columns = ", ".join(f"{quote(column)} {kind}" for column, kind in manifest.columns)
        cursor.execute(f"CREATE TABLE {quote(name)} ({columns})")
        names = ", ".join(quote(column) for column, _ in manifest.columns)
        with cursor.copy(f"COPY {quote(name)} ({names}) FROM STDIN (FORMAT csv, HEADER)") as copy:
            for data in itertools.chain([first], chunks):
                copy.write(data)
        cursor.execute(f"ALTER TABLE {quote(name)} ADD PRIMARY KEY (id)")
        cursor.execute(f"ANALYZE {quote(name)}")
        archive.verify_table(manifest=manifest, table=name)
    return name


def _check_types(manifest: Manifest) -> None:
    """Raise `ColdFileDiffers` for a type that no column of the live table has.

    A type is a part of the statement, and cannot be quoted.
    """
    live = {kind for _, kind in columns_of(table=manifest.table, using=OWNER_DATABASE)}
    if unknown := sorted({kind for _, kind in manifest.columns} - live):
        raise ColdFileDiffers(
            f"{manifest.name} has the column types {unknown}. {manifest.table} has only {sorted(live)}."
        )


def drop_restored(*, name: str) -> None:
    """Drop the table of a restored cold file."""
    with short_lock_timeout() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {connections[OWNER_DATABASE].ops.quote_name(name)}")


def change_cold_file(*, record: DetachedPartition, change: Callable[[str], int]) -> int:
    """Change a cold file's rows by `change(table)` on a restored copy, and record the new cold file.

    Return the number of changed rows. If the process is killed, the old cold file stays valid until the new
    one is recorded. The next run deletes the other files and the copy, here or by `remove_leftovers`.
    """
    drop_restored(name=record.name + _REWRITTEN)
    try:
        table = restore(record=record, suffix=_REWRITTEN)
        if changed := change(table):
            manifest = archive.write_cold_file(record=record, table=table)
            record.manifest = dataclasses.asdict(manifest)
            record.save(using=OWNER_DATABASE, update_fields=["manifest"])
    finally:
        drop_restored(name=record.name + _REWRITTEN)
    archive.delete_unrecorded(record=record)
    return changed


def remove_leftovers(*, record: DetachedPartition) -> None:
    """Drop the copy and delete the files that a killed `change_cold_file` left.

    Call this if the recorded cold file needs no change. It may be the new one, while the old one is still in
    the store. Raise `ColdFileDiffers` if a recorded file is missing.
    """
    drop_restored(name=record.name + _REWRITTEN)
    archive.delete_unrecorded(record=record)
