"""An archive's index: a file next to it that says which pages have rows of an address or of an order.

A page is about 128 kB of CSV, in whole rows. A key is the first 32 bits of the keyed hash of an address or an
id (`outbox.privacy`), so nobody can read or test one without PRIVACY_KEY. A reader compares the rows that a
key finds. The file's name is the archive's, with the archive's SHA-256, and `delete_unrecorded` deletes both.
The index can be made again at any time, and without it `archive.find_rows` reads the whole archive.

Layout, all little-endian:
- magic, length and CRC-32 of the header;
- the header: `HEAD`, then the `ENTRY`s of three tables, each with one more entry for the end: pages (position
in the CSV, CRC-32), frames (position in the CSV, position in the archive), buckets (first record, CRC-32);
- the sorted records (key, page), in buckets by the leading bits of the key.
"""

from __future__ import annotations

import csv
import re
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping

from outbox.database.partitioned import PartitionedModel, Quotes, RetentionRules
from outbox.models import DetachedPartition
from outbox.privacy import address_hash, find_address_hashes
from outbox.retention.archives import files
from outbox.retention.archives.files import lines_of, read_range
from outbox.retention.archives.manifest import ArchiveDiffers, Manifest

#: The index of an "opindex1", which named parts of one frame, is made again.
MAGIC = b"opindex2"
START = struct.Struct("<8sII")
#: The archive's SHA-256, the signature (see `signature_of`), the bits of a bucket, the number of pages, and
#: of frames. The entry for the end counts, too.
HEAD = struct.Struct("<32s16sBII")
ENTRY = struct.Struct("<QQ")
RECORD = struct.Struct("<Q")
_FIRST_READ = 1 << 16
#: This finds overlapping ids, too, as `text in other` does.
_UUID = re.compile(r"(?=([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}))")

Entries = list[tuple[int, int]]


class NoIndex(Exception):
    """The index is missing or damaged, or has other columns, another PRIVACY_KEY or another format."""


def index_name(manifest: Manifest) -> str:
    return manifest.file.removesuffix(".csv.zst") + ".index"


def hashes_of(*, rules: RetentionRules, row: Mapping[str, str]) -> set[str]:
    """Return the keyed hashes that find a row: of its order's id, its address, and its quotes."""
    values = [row.get(column) for column in (rules.owner_column, rules.address_column)]
    found = {address_hash(value) for value in values if value}
    for quotes in _exported(rules):
        text = row.get(quotes.column) or ""
        found |= find_address_hashes(text)
        found |= {address_hash(id) for id in set(_UUID.findall(text.lower()))}
    return found


def _exported(rules: RetentionRules) -> list[Quotes]:
    return [quotes for quotes in rules.quotes if quotes.is_about_person]


def key_of(keyed_hash: str) -> int:
    return int(keyed_hash[:8], 16)


def signature_of(rules: RetentionRules) -> bytes:
    """Return 16 bytes that differ if the indexed columns or PRIVACY_KEY differ, and that reveal neither."""
    quoting = ",".join(quotes.column for quotes in _exported(rules))
    return bytes.fromhex(address_hash(f"{rules.owner_column},{rules.address_column},{quoting}")[:32])


def has_index(*, model: PartitionedModel, record: DetachedPartition, hashes: Collection[str] = ()) -> bool:
    """Return whether the archive has a valid index, also in the buckets of `hashes`."""
    try:
        Index(model=model, manifest=Manifest.of(record)).pages_with(hashes)
    except NoIndex:
        return False
    return True


def has_candidates(*, model: PartitionedModel, record: DetachedPartition, hashes: Collection[str]) -> bool:
    """Return whether the archive may have a row with one of these keyed hashes. Without an index, it may.

    Processes without the right to read archives call this, too.
    """
    try:
        return bool(Index(model=model, manifest=Manifest.of(record)).pages_with(hashes))
    except Exception:  # noqa: BLE001 - no index, or the store refuses; each store has its own errors
        return True


class Index:
    """An archive's opened index. Every method except `rows` raises `NoIndex` if the index cannot be used."""

    def __init__(self, *, model: PartitionedModel, manifest: Manifest) -> None:
        self._manifest, self._name = manifest, index_name(manifest)
        header = self._read_header()
        sha256, signature, self._bits, pages, frames = HEAD.unpack_from(header)
        if (sha256.hex(), signature) != (manifest.file_sha256, signature_of(model.retention)):
            raise NoIndex(f"{self._name} is the index of another archive, other columns or another key")
        entries = list(ENTRY.iter_unpack(header[HEAD.size :]))
        self._pages, self._frames = entries[:pages], entries[pages : pages + frames]
        self._buckets = entries[pages + frames :]
        self._records = START.size + len(header)

    def _read_header(self) -> bytes:
        try:
            begin = self._begin = read_range(name=self._name, start=0, end=_FIRST_READ)
            magic, size, check = START.unpack_from(begin)
            header = begin[START.size : START.size + size]
            if len(header) < size and magic == MAGIC:
                header += read_range(name=self._name, start=len(begin), end=START.size + size)
        except (FileNotFoundError, struct.error) as error:
            raise NoIndex(f"{self._name} is missing") from error
        if magic != MAGIC or len(header) != size or zlib.crc32(header) != check:
            raise NoIndex(f"{self._name} is damaged")
        return header

    def pages_with(self, hashes: Collection[str]) -> list[int]:
        """Return the pages that may have a row with one of these keyed hashes."""
        return sorted({page for one in hashes for page in self._pages_of(key_of(one))})

    def _pages_of(self, key: int) -> Iterator[int]:
        bucket = key >> (32 - self._bits)
        (first, check), (after, _) = self._buckets[bucket : bucket + 2]
        if first == after:
            return
        start, end = (self._records + number * RECORD.size for number in (first, after))
        data = self._begin[start:end]  # for a day's archive, the first read has the whole index
        if end > len(self._begin):
            data = read_range(name=self._name, start=start, end=end)
        if zlib.crc32(data) != check:
            raise NoIndex(f"{self._name} is damaged")
        values = [value for (value,) in RECORD.iter_unpack(data)]
        for value in values[bisect_left(values, key << 32) : bisect_left(values, (key + 1) << 32)]:
            yield value & 0xFFFFFFFF

    def rows(self, pages: Iterable[int]) -> Iterator[dict[str, str]]:
        """Read the rows of these pages, in order. Raise `ArchiveDiffers` if the archive has changed."""
        names = [name for name, _ in self._manifest.columns]
        spans = [(self._pages[page], self._pages[page + 1]) for page in pages]
        found = self._csv([(begin, end) for (begin, _), (end, _) in spans])
        for ((_, check), _), data in zip(spans, found, strict=True):
            if zlib.crc32(data) != check:
                raise ArchiveDiffers(f"{self._manifest.file} does not contain what its index says")
            yield from csv.DictReader((line.decode() for line in lines_of([data])), fieldnames=names)

    def _csv(self, spans: Iterable[tuple[int, int]]) -> Iterator[bytes]:
        """Yield these spans of the CSV, in order."""
        waiting, found = deque(spans), bytearray()
        for position, data in self._frames_with(list(waiting)):
            while waiting and waiting[0][0] < position + len(data):
                begin, end = waiting[0]
                found += data[max(0, begin - position) : end - position]
                if end > position + len(data):
                    break
                yield bytes(found)
                found.clear()
                waiting.popleft()
            if not waiting:
                return
        if waiting:
            raise ArchiveDiffers(f"{self._manifest.file} is shorter than its index says")

    def _frames_with(self, spans: Collection[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
        """Yield the CSV of the frames that contain the spans, in chunks, each with its position."""
        begins = [begin for begin, _ in self._frames]
        wanted = {
            frame
            for begin, end in spans
            for frame in range(bisect_right(begins, begin) - 1, bisect_left(begins, end))
        }
        for frame in sorted(wanted):
            (position, start), (_, end) = self._frames[frame : frame + 2]
            for data in files.read_frame(manifest=self._manifest, start=start, end=end):
                yield position, data
                position += len(data)
