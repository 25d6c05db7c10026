"""Load an archive into a table beside the live one, and write changed archives anew."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

from django.db import connections, transaction

from outbox.models import DetachedPartition
from outbox.retention.archives import archive, files
from outbox.retention.archives.files import Tick, ignore_ticks
from outbox.retention.archives.manifest import ArchiveDiffers, Manifest
from outbox.retention.partitions.locks import OWNER_DATABASE, short_lock_timeout

RESTORED = "_restored"
_REWRITTEN = "_rewritten"


def restore(*, record: DetachedPartition, suffix: str = RESTORED, tick: Tick = ignore_ticks) -> str:
    """Load an archive into a table of its own beside the live one, and return the table's name.

    One transaction, compared with the manifest before it commits. The transaction is never idle while the
    store is read: the archive streams through COPY, once. Raises `ArchiveDiffers`, also if the table exists.
    """
    manifest = Manifest.of(record)
    name = manifest.partition + suffix
    quote = connections[OWNER_DATABASE].ops.quote_name
    chunks = files.read_csv(manifest=manifest, tick=tick)
    first = next(chunks, b"")  # a store that is slow to open keeps no transaction waiting
    with transaction.atomic(using=OWNER_DATABASE), connections[OWNER_DATABASE].cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [name])
        if cursor.fetchone()[0]:
            raise ArchiveDiffers(f"{name} is there already; drop it first")
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


def drop_restored(*, name: str) -> None:
    """Drop a table that an archive was restored into."""
    with short_lock_timeout() as cursor:
        cursor.execute(f"DROP TABLE IF EXISTS {connections[OWNER_DATABASE].ops.quote_name(name)}")


def change_archive(*, record: DetachedPartition, change: Callable[[str], int]) -> int:
    """Change an archive's rows by `change(table)` on a restored copy, and record the new archive.

    Returns the number of rows changed. Killed anywhere, the old archive counts until the new one is
    recorded, and the next run removes what is left over.
    """
    drop_restored(name=record.name + _REWRITTEN)
    try:
        table = restore(record=record, suffix=_REWRITTEN)
        if changed := change(table):
            manifest = archive.write_archive(record=record, table=table)
            record.manifest = dataclasses.asdict(manifest)
            record.save(using=OWNER_DATABASE, update_fields=["manifest"])
    finally:
        drop_restored(name=record.name + _REWRITTEN)
    archive.delete_unrecorded(record=record)
    return changed
