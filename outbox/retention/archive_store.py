"""The files of archives: in a folder or on S3, written durably, read as CSV and checked on the way."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

import zstandard
from django.core.files.base import File
from django.core.files.storage import FileSystemStorage, Storage, storages

from outbox.models import DetachedPartition
from outbox.retention.manifest import ArchiveDiffers, Manifest

CHUNK = 1 << 20
#: Called with the number of bytes of CSV that have just passed, for progress bars.
Tick = Callable[[int], None]


def ignore_ticks(_: int) -> None:
    """Show no progress."""


class Digest:
    """SHA-256 and length of a stream."""

    def __init__(self, tick: Tick = ignore_ticks) -> None:
        self._sha256, self._bytes, self._tick = hashlib.sha256(), 0, tick

    def update(self, data: bytes) -> None:
        self._sha256.update(data)
        self._bytes += len(data)
        self._tick(len(data))

    @property
    def value(self) -> tuple[str, int]:
        """The SHA-256 in hex, and the number of bytes."""
        return self._sha256.hexdigest(), self._bytes


def store() -> Storage:
    """Return the store of archives, as the settings name it."""
    return storages["archive"]


def stored_names(*, record: DetachedPartition) -> list[str]:
    """List the files of a partition, recorded or not."""
    try:
        _, names = store().listdir(record.table)
    except FileNotFoundError:
        return []
    return sorted(f"{record.table}/{name}" for name in names if name.startswith(f"{record.name}."))


def save(*, name: str, content: File) -> None:  # type: ignore[type-arg]
    """Store a file under exactly this name; it survives a power failure after the call."""
    if store().exists(name):  # half written by a killed run, or the same
        store().delete(name)
    if (stored := store().save(name, content)) != name:
        raise ArchiveDiffers(f"the store named {name} {stored}")
    if isinstance(folder := store(), FileSystemStorage):
        path = Path(folder.path(name))
        for one in (path, path.parent, path.parent.parent):  # the entries of new folders too
            _fsync(one)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_csv(*, manifest: Manifest) -> Iterator[bytes]:
    """Yield the CSV of an archive in chunks. Raises `ArchiveDiffers`, at the end for a wrong checksum."""
    packed = Digest()
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
    """A file whose bytes pass through a digest as they are read."""

    def __init__(self, file: IO[bytes], digest: Digest) -> None:
        self._file, self._digest = file, digest

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._digest.update(data)
        return data
