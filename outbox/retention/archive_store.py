"""The files of archives: in a folder or on S3, written durably, read as CSV and checked on the way."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
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
    """Store a file under exactly this name, whole or not at all. It survives a power failure then."""
    folder = store()
    if not isinstance(folder, FileSystemStorage):  # a bucket has an object whole or not at all
        _save(name, content)
        return
    temporary = f"{name}.tmp"
    _save(temporary, content)
    path = Path(folder.path(name))
    _fsync(Path(folder.path(temporary)))
    Path(folder.path(temporary)).replace(path)
    for one in (path.parent, path.parent.parent):  # the entries of new folders too
        _fsync(one)


def _save(name: str, content: File) -> None:  # type: ignore[type-arg]
    if store().exists(name):  # left over by a killed run, or the same
        store().delete(name)
    if (stored := store().save(name, content)) != name:
        raise ArchiveDiffers(f"the store named {name} {stored}")


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
            unpacker = zstandard.ZstdDecompressor().stream_reader(cast("IO[bytes]", Watched(file, packed)))
            while data := unpacker.read(CHUNK):
                yield data
    except FileNotFoundError as error:
        raise ArchiveDiffers(f"{manifest.file} is gone from the store") from error
    except zstandard.ZstdError as error:
        raise ArchiveDiffers(f"{manifest.file} cannot be read: {error}") from error
    if packed.value != (manifest.file_sha256, manifest.file_bytes):
        raise ArchiveDiffers(f"{manifest.file} is not the file that its manifest names")


def read_range(*, name: str, start: int, end: int) -> bytes:
    """Read the bytes [start, end) of a file, or up to its end. Raises `FileNotFoundError`."""
    with store().open(name) as file:
        if (remote := getattr(file, "obj", None)) is not None:  # S3: only what is asked for is fetched
            return bytes(remote.get(Range=f"bytes={start}-{end - 1}")["Body"].read())
        file.seek(start)
        return bytes(file.read(end - start))


def check_present(*, manifest: Manifest) -> None:
    """Raise `ArchiveDiffers` if the store has no archive of that name and size."""
    try:
        size = store().size(manifest.file)
    except FileNotFoundError as error:
        raise ArchiveDiffers(f"{manifest.file} is gone from the store") from error
    if size != manifest.file_bytes:
        raise ArchiveDiffers(f"{manifest.file} has {size} bytes, its manifest says {manifest.file_bytes}")


def lines_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a stream, each with its newline."""
    rest = b""
    for data in chunks:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest


class Watched:
    """A file whose bytes pass through a digest as they are read."""

    def __init__(self, file: IO[bytes], digest: Digest) -> None:
        self._file, self._digest = file, digest

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._digest.update(data)
        return data
