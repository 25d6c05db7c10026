"""The files of archives in a folder or on S3. Writes are durable, and reads as CSV check every byte."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import zstandard
from django.core.files.base import File
from django.core.files.storage import FileSystemStorage, Storage, storages

from outbox.models import DetachedPartition
from outbox.retention.archives.manifest import ArchiveDiffers, Manifest
from outbox.retention.archives.pieces import unpack

#: How many bytes of an archive to unpack at once, which bounds memory, and to request from S3 at once.
_CHUNK, _REQUEST = 1 << 16, 1 << 20
#: A function for progress bars. It is called with the number of bytes of CSV that have just passed.
Tick = Callable[[int], None]


def ignore_ticks(_: int) -> None:
    """Show no progress."""


class Digest:
    """SHA-256 and length of a stream."""

    def __init__(self, tick: Tick = ignore_ticks) -> None:
        self._sha256, self._bytes, self._tick = hashlib.sha256(), 0, tick

    def of(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Count each chunk of the stream, then yield it."""
        for data in chunks:
            self._sha256.update(data)
            self._bytes += len(data)
            self._tick(len(data))
            yield data

    @property
    def value(self) -> tuple[str, int]:
        """The SHA-256 in hex, and the number of bytes."""
        return self._sha256.hexdigest(), self._bytes


def store() -> Storage:
    return storages["archive"]


def stored_names(*, record: DetachedPartition) -> list[str]:
    """List the files of a partition, recorded or not."""
    try:
        _, names = store().listdir(record.table)
    except FileNotFoundError:
        return []
    return sorted(f"{record.table}/{name}" for name in names if name.startswith(f"{record.name}."))


def save(*, name: str, content: File) -> None:  # type: ignore[type-arg]
    """Store a file under exactly this name, whole or not at all, so that it survives a power failure."""
    folder = store()
    if not isinstance(folder, FileSystemStorage):  # a bucket stores an object whole or not at all
        _save(name, content)
        return
    temporary = f"{name}.tmp"
    _save(temporary, content)
    path = Path(folder.path(name))
    _fsync(Path(folder.path(temporary)))
    Path(folder.path(temporary)).replace(path)
    for one in (path.parent, path.parent.parent):  # so that the entries of new folders are durable, too
        _fsync(one)


def _save(name: str, content: File) -> None:  # type: ignore[type-arg]
    if store().exists(name):  # of a killed run, or the same file
        store().delete(name)
    if (stored := store().save(name, content)) != name:
        raise ArchiveDiffers(f"the store named {name} {stored}")


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_csv(
    *, manifest: Manifest, tick: Tick = ignore_ticks, bounds: list[tuple[int, int]] | None = None
) -> Iterator[bytes]:
    """Yield the CSV of an archive in chunks. `unpack` describes `bounds`.

    Raise `ArchiveDiffers`, for a wrong checksum only after the last chunk.
    """
    packed, plain = Digest(), Digest(tick)
    with _explaining(manifest), store().open(manifest.file) as file:
        chunks = iter(lambda: file.read(_CHUNK), b"")
        yield from plain.of(unpack(packed.of(chunks), bounds))
    if packed.value != (manifest.file_sha256, manifest.file_bytes):
        raise ArchiveDiffers(f"{manifest.file} is not the file that its manifest names")
    if plain.value != (manifest.csv_sha256, manifest.csv_bytes):
        raise ArchiveDiffers(f"{manifest.file} does not contain what its manifest says")


def read_frame(*, manifest: Manifest, start: int, end: int) -> Iterator[bytes]:
    """Yield the CSV of the frame in the bytes [start, end) of an archive. Raise `ArchiveDiffers`."""

    def chunks() -> Iterator[bytes]:
        for begin in range(start, end, _REQUEST):
            data = read_range(name=manifest.file, start=begin, end=min(begin + _REQUEST, end))
            yield from (data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK))

    with _explaining(manifest):
        yield from unpack(chunks())


@contextlib.contextmanager
def _explaining(manifest: Manifest) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:  # perhaps because an erasure has just replaced it
        raise ArchiveDiffers(f"{manifest.file} is not in the store") from error
    except zstandard.ZstdError as error:
        raise ArchiveDiffers(f"{manifest.file} cannot be read: {error}") from error


def read_range(*, name: str, start: int, end: int) -> bytes:
    """Read the bytes [start, end) of a file, or up to its end. Raise `FileNotFoundError`."""
    with store().open(name) as file:
        if (remote := getattr(file, "obj", None)) is not None:  # on S3, fetch only these bytes
            return bytes(remote.get(Range=f"bytes={start}-{end - 1}")["Body"].read())
        file.seek(start)
        return bytes(file.read(end - start))


def check_present(*, manifest: Manifest) -> None:
    """Raise `ArchiveDiffers` if the store has no archive of that name and size."""
    try:
        size = store().size(manifest.file)
    except FileNotFoundError as error:
        raise ArchiveDiffers(f"{manifest.file} is not in the store") from error
    if size != manifest.file_bytes:
        raise ArchiveDiffers(f"{manifest.file} has {size} bytes, but its manifest says {manifest.file_bytes}")


def lines_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a stream, each with its newline."""
    rest = b""
    for data in chunks:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest
