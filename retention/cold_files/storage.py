"""The storage of cold files in a folder or on S3. Writes are durable, and reads as CSV check every byte."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, cast

import zstandard
from django.core.files.base import File
from django.core.files.storage import FileSystemStorage, Storage, storages

from retention.cold_files.manifest import ColdFileDiffers, Manifest
from retention.models import DetachedPartition

#: How many bytes of CSV to unpack at once, which bounds memory.
_CHUNK = 1 << 16
_LEVEL = 6
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
    """Store a file under exactly this name, whole or not at all, and durably: it survives a power failure."""
    files = store()
    if not isinstance(files, FileSystemStorage):  # a bucket stores an object whole or not at all
        _save(name, content)
        return
    temporary = f"{name}.tmp"
    _save(temporary, content)
    path = Path(files.path(name))
    _fsync(Path(files.path(temporary)))
    Path(files.path(temporary)).replace(path)
    for folder in (path.parent, path.parent.parent):  # the entries of new folders are durable, too
        _fsync(folder)


def _save(name: str, content: File) -> None:  # type: ignore[type-arg]
    if store().exists(name):  # of a killed run, or the same file
        store().delete(name)
    if (stored := store().save(name, content)) != name:
        raise ColdFileDiffers(f"the store named {name} {stored}")


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def pack(csv: Iterable[bytes]) -> Iterator[bytes]:
    """Compress the CSV, whose chunks may have any size, as one zstandard frame with a checksum."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compressobj()
    for data in csv:
        yield compressor.compress(data)
    yield compressor.flush()


class _Counted:
    """A file that counts in a digest what is read from it."""

    def __init__(self, file: File, digest: Digest) -> None:  # type: ignore[type-arg]
        self._file, self._digest = file, digest

    def read(self, size: int) -> bytes:
        return b"".join(self._digest.of([self._file.read(size)]))


def read_csv(*, manifest: Manifest, tick: Tick = ignore_ticks) -> Iterator[bytes]:
    """Yield the CSV of a cold file in chunks.

    Raise `ColdFileDiffers`, for a wrong checksum only after the last chunk.
    """
    packed, plain = Digest(), Digest(tick)
    try:
        with store().open(manifest.file) as file:
            # A reader of one frame would ignore bytes after its end.
            counted = cast("IO[bytes]", _Counted(file, packed))
            reader = zstandard.ZstdDecompressor().stream_reader(counted, read_across_frames=True)
            yield from plain.of(iter(lambda: reader.read(_CHUNK), b""))
    except FileNotFoundError as error:  # an erasure may have just replaced it
        raise ColdFileDiffers(f"{manifest.file} is not in the store") from error
    except zstandard.ZstdError as error:
        raise ColdFileDiffers(f"{manifest.file} cannot be read: {error}") from error
    if packed.value != (manifest.file_sha256, manifest.file_bytes):
        raise ColdFileDiffers(f"{manifest.file} is not the file that its manifest names")
    if plain.value != (manifest.csv_sha256, manifest.csv_bytes):
        raise ColdFileDiffers(f"{manifest.file} does not contain what its manifest says")


def check_present(*, manifest: Manifest) -> None:
    """Raise `ColdFileDiffers` if the store has no cold file of that name and size."""
    try:
        size = store().size(manifest.file)
    except FileNotFoundError as error:
        raise ColdFileDiffers(f"{manifest.file} is not in the store") from error
    if size != manifest.file_bytes:
        raise ColdFileDiffers(
            f"{manifest.file} has {size} bytes, but its manifest says {manifest.file_bytes}"
        )


def lines_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a stream, each with its newline."""
    rest = b""
    for data in chunks:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line + b"\n"
    if rest:
        yield rest
