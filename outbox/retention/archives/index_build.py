"""Write the index of an archive into a file next to it. `index` describes the format."""

from __future__ import annotations

import contextlib
import csv
import math
import tempfile
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import IO

from django.core.files.base import File

from outbox.database.partitioned import PartitionedModel, RetentionRules
from outbox.models import DetachedPartition
from outbox.retention.archives import files, index
from outbox.retention.archives.files import Tick, ignore_ticks, lines_of
from outbox.retention.archives.index import (
    ENTRY,
    HEAD,
    MAGIC,
    RECORD,
    START,
    Entries,
    hashes_of,
    index_name,
    key_of,
    signature_of,
)
from outbox.retention.archives.manifest import Manifest
from outbox.retention.partitions.locks import Report

#: A page ends with the row that reaches so many bytes of CSV.
PAGE = 1 << 17
#: In how many parts the index is sorted, one after the other, to bound memory.
_PARTS = 64
_RECORDS_IN_BUCKET = 256
_MOST_BITS = 16


def index_archive(
    *, model: PartitionedModel, record: DetachedPartition, report: Report, hashes: Collection[str] = ()
) -> None:
    """Index an archive if it has no index that is valid for `hashes`. The caller holds `exclusive_lock`.

    Raise `ArchiveDiffers` if the archive is missing or differs from its manifest.
    """
    files.check_present(manifest=Manifest.of(record))
    if not index.has_index(model=model, record=record, hashes=hashes):
        build(
            model=model, record=record, tick=lambda count: report("bytes", partition=record.name, bytes=count)
        )
        report("indexed", partition=record.name)


def build(*, model: PartitionedModel, record: DetachedPartition, tick: Tick = ignore_ticks) -> None:
    """Read a whole archive and write its index.

    The caller holds the table's `exclusive_lock`, because otherwise an erasure could delete the archive
    meanwhile and the index would remain. Raise `ArchiveDiffers` if the archive differs from its manifest.
    """
    manifest = Manifest.of(record)
    with contextlib.ExitStack() as opened:
        parts = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(_PARTS)]
        frames: Entries = []
        chunks = files.read_csv(manifest=manifest, tick=tick, bounds=frames)
        pages = _read_pages(model.retention, chunks, parts)
        result = opened.enter_context(tempfile.TemporaryFile(prefix="orderpost-index-"))
        _write(result, manifest, model.retention, frames, pages, parts)
        result.seek(0)
        files.save(name=index_name(manifest), content=File(result))


def _read_pages(rules: RetentionRules, chunks: Iterable[bytes], parts: Sequence[IO[bytes]]) -> Entries:
    """Write records to `parts` by the key's first bits. Return each page's position and CRC-32."""
    position, crc = 0, 0

    def lines() -> Iterator[str]:
        nonlocal position, crc
        for line in lines_of(chunks):
            position += len(line)
            crc = zlib.crc32(line, crc)
            yield line.decode(errors="replace")  # read_csv raises for damaged bytes at the end

    rows = csv.DictReader(lines())
    _ = rows.fieldnames  # this reads the header
    pages: Entries = []
    begin, crc = position, 0
    keys: set[int] = set()

    def end_page() -> None:
        nonlocal begin, crc
        for key in keys:
            parts[key * _PARTS >> 32].write(RECORD.pack(key << 32 | len(pages)))
        pages.append((begin, crc))
        begin, crc = position, 0
        keys.clear()

    for row in rows:
        keys.update(key_of(one) for one in hashes_of(rules=rules, row=row))
        if position - begin >= PAGE:
            end_page()
    if keys:
        end_page()
    return [*pages, (position, 0)]


def _write(
    file: IO[bytes],
    manifest: Manifest,
    rules: RetentionRules,
    frames: Entries,
    pages: Entries,
    parts: Sequence[IO[bytes]],
) -> None:
    records = sum(part.tell() for part in parts) // RECORD.size
    bits = min(_MOST_BITS, math.ceil(math.log2(max(1, records / _RECORDS_IN_BUCKET))))
    counts, checks = [0] * (1 << bits), [0] * (1 << bits)
    size = HEAD.size + ENTRY.size * (len(pages) + len(frames) + len(counts) + 1)
    file.seek(START.size + size)
    for part in parts:
        part.seek(0)
        values = sorted(value for (value,) in RECORD.iter_unpack(part.read()))
        for bucket, group in groupby(values, key=lambda value: value >> (64 - bits)):
            data = b"".join(map(RECORD.pack, group))
            counts[bucket] += len(data) // RECORD.size
            checks[bucket] = zlib.crc32(data, checks[bucket])
            file.write(data)
    buckets: Entries = []
    first = 0
    for count, check in zip([*counts, 0], [*checks, 0], strict=True):
        buckets.append((first, check))
        first += count
    header = HEAD.pack(
        bytes.fromhex(manifest.file_sha256),
        signature_of(rules),
        bits,
        len(pages),
        len(frames),
    ) + b"".join(ENTRY.pack(*entry) for table in (pages, frames, buckets) for entry in table)
    file.seek(0)
    file.write(START.pack(MAGIC, size, zlib.crc32(header)) + header)
