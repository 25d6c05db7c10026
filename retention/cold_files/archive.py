"""Write a detached month to a cold file: its table as CSV in zstandard with a manifest, in a folder or on S3.

`write_cold_file` and `verify` compare every byte with the table before the table is dropped. A file's name
contains its SHA-256, and a new cold file never overwrites an old one. The record in `detached_partitions`
names the valid cold file, and `delete_unrecorded` deletes every other file. Memory use stays at a few
megabytes.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator

from django.core.files.base import ContentFile, File
from django.utils import timezone

from retention.cold_files import storage
from retention.cold_files.manifest import ColdFileDiffers, Manifest
from retention.cold_files.storage import Digest, Tick, ignore_ticks, store
from retention.cold_files.table_copy import columns_of, copy_out, extent, snapshot
from retention.models import DetachedPartition
from retention.partitions.locks import OWNER_DATABASE

csv.field_size_limit(sys.maxsize)  # an e-mail's body is one field


def write_cold_file(*, record: DetachedPartition, table: str = "", tick: Tick = ignore_ticks) -> Manifest:
    """Archive a table, read the cold file back, compare it, and return its manifest.

    `table` is the partition's table unless another is given (a restored one). The caller saves the record.
    Raise `ColdFileDiffers` if the stored bytes differ from the table.
    """
    table = table or record.name
    plain, packed = Digest(tick), Digest()
    with tempfile.TemporaryFile(prefix="orderpost-archive-") as file:
        with snapshot():
            columns = columns_of(table=table, using=OWNER_DATABASE)
            rows, first, last = extent(table=table)
            rows_as_csv = copy_out(table=table, columns=columns)
            file.writelines(packed.of(storage.pack(plain.of(rows_as_csv))))
        csv_sha, csv_bytes = plain.value
        file_sha, file_bytes = packed.value
        manifest = Manifest(
            partition=record.name,
            table=record.table,
            since=record.since.isoformat(),
            until=record.until.isoformat(),
            columns=columns,
            rows=rows,
            first_id=first,
            last_id=last,
            csv_sha256=csv_sha,
            csv_bytes=csv_bytes,
            file=f"{record.table}/{record.name}.{file_sha[:12]}.csv.zst",
            file_sha256=file_sha,
            file_bytes=file_bytes,
            written_at=timezone.now().isoformat(),
        )
        file.seek(0)
        storage.save(name=manifest.file, content=File(file))
    document = json.dumps(dataclasses.asdict(manifest), indent=2).encode()
    storage.save(name=manifest.name, content=ContentFile(document))
    verify(manifest=manifest, table=table, tick=tick)
    return manifest


def verify(*, manifest: Manifest, table: str = "", tick: Tick = ignore_ticks) -> None:
    """Read a whole cold file and compare every byte with its manifest, and with `table` if given.

    Raise `ColdFileDiffers` with the first difference.
    """
    for _ in storage.read_csv(manifest=manifest, tick=tick):
        pass
    if table:
        verify_table(manifest=manifest, table=table)


def verify_table(*, manifest: Manifest, table: str) -> None:
    """Compare every byte of a table with a manifest, without the cold file. Raise `ColdFileDiffers`."""
    present = Digest()
    with snapshot():
        rows, first, last = extent(table=table)
        for _ in present.of(copy_out(table=table, columns=manifest.columns)):
            pass
    if (rows, first, last) != (manifest.rows, manifest.first_id, manifest.last_id):
        raise ColdFileDiffers(f"{table} has {rows} rows ({first} … {last}), {manifest.file} {manifest.rows}")
    if present.value != (manifest.csv_sha256, manifest.csv_bytes):
        raise ColdFileDiffers(f"{table} has changed since {manifest.file} was written")


def find_unrecorded(*, record: DetachedPartition) -> Manifest | None:
    """Find a cold file of the table's present rows that a killed run wrote but did not record."""
    for name in storage.stored_names(record=record):
        if name.endswith(".json"):
            with contextlib.suppress(ColdFileDiffers, FileNotFoundError, ValueError, TypeError):
                with store().open(name) as file:
                    manifest = Manifest(**json.load(file))
                verify(manifest=manifest, table=record.name)
                return manifest
    return None


def delete_unrecorded(*, record: DetachedPartition) -> list[str]:
    """Delete the partition's files that its record does not name, and return their names.

    A killed run or an erasure leaves such files. Raise `ColdFileDiffers` and delete nothing if a file that
    the record names is missing.
    """
    keep: set[str] = set()
    if not record.deleted_at:
        manifest = Manifest.of(record)
        keep = {manifest.file, manifest.name}
        if not all(store().exists(name) for name in keep):
            raise ColdFileDiffers(f"{manifest.file} or its manifest is not in the store")
    gone = [name for name in storage.stored_names(record=record) if name not in keep]
    for name in gone:
        store().delete(name)
    return gone


def find_rows(
    *, record: DetachedPartition, wanted: Callable[[dict[str, str]], bool]
) -> Iterator[dict[str, str]]:
    """Yield the wanted rows of a cold file, with all values as text. Read the cold file from end to end.

    Raise `ColdFileDiffers` for a missing or damaged cold file. A damage may be found only after some rows.
    """
    chunks = storage.read_csv(manifest=Manifest.of(record))
    rows = csv.DictReader(line.decode(errors="replace") for line in storage.lines_of(chunks))
    return (row for row in rows if wanted(row))


def cold_partitions(*, table: str, using: str = OWNER_DATABASE) -> Iterable[DetachedPartition]:
    """List the partitions of a table with a cold file, oldest first."""
    return (
        DetachedPartition.objects.using(using)
        .filter(table=table, archived_at__isnull=False, deleted_at=None)
        .order_by("since")
    )
