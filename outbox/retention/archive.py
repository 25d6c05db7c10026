"""Archives of retired partitions: a table as CSV in zstandard, with a manifest, in a folder or on S3.

`write` and `verify` compare every byte with the table before anybody drops it. The manifest's name and the
file's have the file's SHA-256 in them, so a new archive never overwrites an old one; the record in
`retired_partitions` says which one counts, and what no record names is swept away. Nothing here holds more
than a few megabytes. Called by outbox.retention and by `manage.py partitions` and `archive`.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import hashlib
import io
import json
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from typing import IO, cast

import structlog
import zstandard
from django.core.files.base import ContentFile, File
from django.core.files.storage import Storage, storages
from django.db import connections, transaction
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from outbox.models import RetiredPartition

log = structlog.get_logger(__name__)

FORMAT = 1
LEVEL = 6
CHUNK = 1 << 20
RESTORED = "_restored"
#: Called with the number of bytes of CSV that have just passed, for progress bars.
Tick = Callable[[int], None]
csv.field_size_limit(sys.maxsize)  # an e-mail's body is one field


def _nobody(_: int) -> None:
    """Watches nothing."""


class ArchiveDiffers(RuntimeError):
    """An archive is not what its manifest or its table says."""


@dataclasses.dataclass(frozen=True, slots=True)
class Manifest:
    """What an archive holds: kept beside it as JSON, and in the partition's record."""

    partition: str
    table: str
    since: str  # [since, until): ISO 8601, UTC
    until: str
    schema: str  # the last migration of the table's app
    columns: list[list[str]]  # name and type, in the CSV's order
    rows: int
    first_id: str | None
    last_id: str | None
    csv_sha256: str
    csv_bytes: int
    file: str
    file_sha256: str
    file_bytes: int
    written_at: str
    format: int = FORMAT

    @property
    def name(self) -> str:
        """Where the manifest itself is stored."""
        return self.file.removesuffix(".csv.zst") + ".json"

    @classmethod
    def of(cls, record: RetiredPartition) -> Manifest:
        """This function will read a record's manifest. Raises `ArchiveDiffers` if it has none."""
        if not record.manifest:
            raise ArchiveDiffers(f"{record.name} has no archive")
        return cls(**record.manifest)


class _Digest:
    """SHA-256 and length of what passes, with a word to whoever watches."""

    def __init__(self, tick: Tick = _nobody) -> None:
        self.sha256, self.bytes, self.tick = hashlib.sha256(), 0, tick

    def update(self, data: bytes) -> None:
        self.sha256.update(data)
        self.bytes += len(data)
        self.tick(len(data))

    @property
    def value(self) -> tuple[str, int]:
        return self.sha256.hexdigest(), self.bytes


def store() -> Storage:
    """This function will give the store of archives, as the settings name it."""
    return storages["archive"]


def write(
    *, record: RetiredPartition, using: str = "direct", table: str = "", tick: Tick = _nobody
) -> Manifest:
    """This function will archive a table, read the archive back and compare it, and return its manifest.

    `table` is the partition's own unless another is named (a restored one). The record is the caller's to
    write. Raises `ArchiveDiffers` if what was stored is not what was read.
    """
    table = table or record.name
    plain, packed = _Digest(tick), _Digest()
    with tempfile.TemporaryFile(prefix="orderpost-archive-") as file:
        packer = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True).compressobj()
        with _snapshot(using):
            columns = _columns(table, using)
            rows, first, last = _extent(table, using)
            for data in _copy_out(table, columns, using):
                plain.update(data)
                _put(file, packer.compress(data), packed)
            _put(file, packer.flush(), packed)
        csv_sha, csv_bytes = plain.value
        file_sha, file_bytes = packed.value
        manifest = Manifest(
            partition=record.name,
            table=record.table,
            since=record.since.isoformat(),
            until=record.until.isoformat(),
            schema=_schema(record.table, using),
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
        _save(manifest.file, File(file))
    _save(manifest.name, ContentFile(json.dumps(dataclasses.asdict(manifest), indent=2).encode()))
    verify(manifest=manifest, using=using, table=table, tick=tick)
    return manifest


def verify(*, manifest: Manifest, using: str = "direct", table: str = "", tick: Tick = _nobody) -> None:
    """This function will read a whole archive, and the table too if one is named, and compare every byte.

    Raises `ArchiveDiffers` with the first difference found.
    """
    plain = _Digest(tick)
    for data in _unpacked(manifest):
        plain.update(data)
    if plain.value != (manifest.csv_sha256, manifest.csv_bytes):
        raise ArchiveDiffers(f"{manifest.file} does not hold what its manifest says")
    if not table:
        return
    present = _Digest(tick)
    with _snapshot(using):
        rows, first, last = _extent(table, using)
        for data in _copy_out(table, manifest.columns, using):
            present.update(data)
    if (rows, first, last) != (manifest.rows, manifest.first_id, manifest.last_id):
        raise ArchiveDiffers(f"{table} has {rows} rows ({first} … {last}), {manifest.file} {manifest.rows}")
    if present.value != plain.value:
        raise ArchiveDiffers(f"{table} has changed since {manifest.file} was written")


def adopt(*, record: RetiredPartition, using: str = "direct") -> Manifest | None:
    """This function will find an archive of the table as it is now that was written, but not recorded."""
    for name in _stored(record):
        if name.endswith(".json"):
            with contextlib.suppress(ArchiveDiffers, FileNotFoundError, ValueError, TypeError):
                with store().open(name) as file:
                    manifest = Manifest(**json.load(file))
                verify(manifest=manifest, using=using, table=record.name)
                return manifest
    return None


def sweep(*, record: RetiredPartition) -> list[str]:
    """This function will delete the partition's files that its record does not name, and say which.

    They are what a killed run or an erasure left. Nothing is deleted unless what the record names is there.
    """
    keep: set[str] = set()
    if not record.deleted_at:
        manifest = Manifest.of(record)
        keep = {manifest.file, manifest.name}
        if not all(store().exists(name) for name in keep):
            raise ArchiveDiffers(f"{manifest.file} or its manifest is gone from the store")
    gone = [name for name in _stored(record) if name not in keep]
    for name in gone:
        store().delete(name)
    return gone


def restore(
    *, record: RetiredPartition, using: str = "direct", suffix: str = RESTORED, tick: Tick = _nobody
) -> str:
    """This function will load an archive into a table of its own beside the live one, and name it.

    All or nothing, compared with the manifest before it commits. Raises `ArchiveDiffers`, also if the
    table is there already.
    """
    manifest = Manifest.of(record)
    name = manifest.partition + suffix
    quote = connections[using].ops.quote_name
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s) IS NOT NULL", [name])
        if cursor.fetchone()[0]:
            raise ArchiveDiffers(f"{name} is there already; drop it first")
        columns = ", ".join(f"{quote(column)} {kind}" for column, kind in manifest.columns)
        cursor.execute(f"CREATE TABLE {quote(name)} ({columns})")
        names = ", ".join(quote(column) for column, _ in manifest.columns)
        plain = _Digest(tick)
        with cursor.copy(f"COPY {quote(name)} ({names}) FROM STDIN (FORMAT csv, HEADER)") as copy:
            for data in _unpacked(manifest):
                plain.update(data)
                copy.write(data)
        cursor.execute(f"ALTER TABLE {quote(name)} ADD PRIMARY KEY (id)")
        cursor.execute(f"ANALYZE {quote(name)}")
        verify(manifest=manifest, using=using, table=name, tick=tick)
    return name


def find(*, record: RetiredPartition, wanted: Callable[[dict[str, str]], bool]) -> Iterator[dict[str, str]]:
    """This function will read an archive from end to end and yield the rows that are wanted, as text."""
    with store().open(Manifest.of(record).file) as file:
        unpacker = zstandard.ZstdDecompressor().stream_reader(file)
        lines = io.TextIOWrapper(cast("IO[bytes]", unpacker), encoding="utf-8", newline="")
        yield from (row for row in csv.DictReader(lines) if wanted(row))


def rewrite(*, record: RetiredPartition, change: Callable[[str], int], using: str = "direct") -> int:
    """This function will change an archive's rows by `change(table)` on a restored copy, and record it.

    Returns the number of rows changed. Killed anywhere, the old archive counts until the new one is
    recorded, and whatever is left over goes with the next run.
    """
    suffix = "_rewritten"
    quote = connections[using].ops.quote_name

    def clear() -> None:
        with connections[using].cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {quote(record.name + suffix)}")

    clear()
    try:
        table = restore(record=record, using=using, suffix=suffix)
        if changed := change(table):
            manifest = write(record=record, using=using, table=table)
            record.manifest = dataclasses.asdict(manifest)
            record.save(using=using, update_fields=["manifest"])
    finally:
        clear()
    sweep(record=record)
    return changed


def delete(*, record: RetiredPartition) -> None:
    """This function will delete the partition's files; the record keeps the manifest."""
    for name in _stored(record):
        store().delete(name)


def _stored(record: RetiredPartition) -> list[str]:
    try:
        _, names = store().listdir(record.table)
    except FileNotFoundError:
        return []
    return sorted(f"{record.table}/{name}" for name in names if name.startswith(f"{record.name}."))


def _save(name: str, content: File) -> None:  # type: ignore[type-arg]
    if store().exists(name):  # half written by a killed run, or the same
        store().delete(name)
    if (stored := store().save(name, content)) != name:
        raise ArchiveDiffers(f"the store named {name} {stored}")


def _put(file: IO[bytes], data: bytes, digest: _Digest) -> None:
    file.write(data)
    digest.update(data)


@contextlib.contextmanager
def _snapshot(using: str) -> Iterator[None]:
    """Read only, one snapshot, and the settings that a value's text depends on."""
    if connections[using].in_atomic_block:  # a restore compares before it commits
        yield
        return
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield


def _columns(table: str, using: str) -> list[list[str]]:
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            [connections[using].ops.quote_name(table)],
        )
        return [list(column) for column in cursor.fetchall()]


def _extent(table: str, using: str) -> tuple[int, str | None, str | None]:
    name = connections[using].ops.quote_name(table)
    ends = [f"(SELECT id FROM {name} ORDER BY id {way} LIMIT 1)" for way in ("ASC", "DESC")]  # noqa: S608
    with connections[using].cursor() as cursor:
        cursor.execute(f"SELECT (SELECT count(*) FROM {name}), {ends[0]}, {ends[1]}")  # noqa: S608
        rows, first, last = cursor.fetchone()
        return rows, *((str(id) if isinstance(id, uuid.UUID) else None) for id in (first, last))


def _copy_out(table: str, columns: list[list[str]], using: str) -> Iterator[bytes]:
    quote = connections[using].ops.quote_name
    names = ", ".join(quote(column) for column, _ in columns)
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT set_config('datestyle', 'ISO', true), set_config('timezone', 'UTC', true)")
        select = f"SELECT {names} FROM {quote(table)} ORDER BY id"  # noqa: S608
        with cursor.copy(f"COPY ({select}) TO STDOUT (FORMAT csv, HEADER)") as copy:
            for data in copy:
                yield bytes(data)


def _unpacked(manifest: Manifest) -> Iterator[bytes]:
    """The CSV of an archive, whose file must be the one that the manifest names."""
    packed = _Digest()
    try:
        with store().open(manifest.file) as file:
            unpacker = zstandard.ZstdDecompressor().stream_reader(cast("IO[bytes]", _Watched(file, packed)))
            while data := unpacker.read(CHUNK):
                yield data
    except FileNotFoundError as error:
        raise ArchiveDiffers(f"{manifest.file} is gone from the store") from error
    except zstandard.ZstdError as error:
        raise ArchiveDiffers(f"{manifest.file} cannot be read: {error}") from error
    if packed.value != (manifest.file_sha256, manifest.file_bytes):
        raise ArchiveDiffers(f"{manifest.file} is not the file that its manifest names")


class _Watched:
    """A file whose bytes a digest sees as they are read."""

    def __init__(self, file: IO[bytes], digest: _Digest) -> None:
        self._file, self._digest = file, digest

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._digest.update(data)
        return data


def _schema(table: str, using: str) -> str:
    from django.apps import apps

    app = next((model._meta.app_label for model in apps.get_models() if model._meta.db_table == table), "")
    applied = MigrationRecorder(connections[using]).applied_migrations()
    return max((f"{label}.{name}" for label, name in applied if label == app), default="")
