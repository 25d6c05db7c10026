"""Read the JSON lines that processes logged, plain or compressed by gzip or zstandard."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import zlib
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import zstandard

#: The names under which collectors store the original line.
_WRAPPED = ("log", "message", "body", "MESSAGE")
_CHUNK_BYTES = 64 * 1024


@dataclasses.dataclass(slots=True)
class Counts:
    """The number of lines that were read, and of those that could not be parsed."""

    lines: int = 0
    unreadable: int = 0


def read_log_lines(*, paths: Iterable[Path], counts: Counts) -> Iterator[dict[str, Any]]:
    """Yield the lines of log files as dicts, and count them in `counts`.

    A line may have a prefix, like those of containers, or be wrapped in a collector's JSON. Other lines, and
    the damaged end of a compressed file, are counted as unreadable. Raise `OSError` for a file that cannot be
    opened.
    """
    for path in paths:
        with _open(path) as file:
            try:
                for raw in file:
                    counts.lines += 1
                    line = parse_log_line(raw)
                    if line is None:
                        counts.unreadable += 1
                    else:
                        yield line
            except (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError):
                counts.unreadable += 1


def parse_log_line(raw: str) -> dict[str, Any] | None:
    r"""Return a line of ours, or None for any other line.

    >>> parse_log_line('2026-11-21T20:15:00Z stderr F {"event": "drained"}')
    {'event': 'drained'}
    >>> parse_log_line('{"log": "{\\"event\\": \\"drained\\"}", "stream": "stderr"}')
    {'event': 'drained'}
    >>> parse_log_line("Traceback (most recent call last):")
    """
    start = raw.find("{")
    if start < 0:
        return None
    try:
        line = json.loads(raw[start:])
    except ValueError:
        return None
    if isinstance(line.get("event"), str):
        return dict(line)
    for name in _WRAPPED:
        inner = line.get(name)
        if isinstance(inner, str) and inner.lstrip().startswith("{"):
            return parse_log_line(inner)
    return None


def _open(path: Path) -> AbstractContextManager[Iterable[str]]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    if path.suffix in (".zst", ".zstd"):
        return contextlib.closing(_unpack(path.open("rb")))
    return path.open(encoding="utf-8", errors="replace")


def _unpack(file: IO[bytes]) -> Generator[str, None, None]:
    """Yield the lines of zstandard frames. Raise `EOFError`, as gzip does, if the last frame is cut short.

    The readers of zstandard take the end of the file for the end of the frame.
    """
    frame, rest = None, b""
    with file:
        while packed := file.read(_CHUNK_BYTES):
            while packed:
                frame = frame or zstandard.ZstdDecompressor().decompressobj()
                *lines, rest = (rest + frame.decompress(packed)).split(b"\n")
                yield from (line.decode("utf-8", "replace") for line in lines)
                packed, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
    if frame is not None:
        raise EOFError("the last frame is cut short")
    if rest:
        yield rest.decode("utf-8", "replace")
