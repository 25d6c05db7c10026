"""Send an answer that is made while it is sent, such as a CSV file, no faster than the client reads it.

Granian's stream of an answer has no limit: a file of a gigabyte would wait in memory for a slow client.
Granian reads a file only as fast as it is sent, and a pipe is a file.
"""

from __future__ import annotations

import os
import select
from collections.abc import Iterable, Iterator
from typing import Any

#: An answer up to this size is sent whole. It must be larger than a pipe's buffer (64 KiB): what is written
#: beyond the buffer proves that Granian has opened the pipe.
WHOLE_BYTES = 2**18
#: How long a client may read nothing before its answer ends.
STALL_SECONDS = 60.0


def send_stream(proto: Any, status: int, headers: list[tuple[str, str]], chunks: Iterable[bytes]) -> None:
    """Send the chunks, which the caller closes."""
    iterator = iter(chunks)
    first = _first_bytes(iterator)
    if len(first) < WHOLE_BYTES:
        proto.response_bytes(status, headers, first)
        return
    reading, writing = os.pipe()
    try:
        os.set_blocking(writing, False)
        # Opening this path gives Granian an end of its own.
        proto.response_file(status, headers, f"/proc/self/fd/{reading}")
        if not _write(writing, first):
            return
        os.close(reading)  # now a write fails when the client is gone
        reading = -1
        for chunk in iterator:
            if not _write(writing, chunk):
                return
    finally:
        os.close(writing)
        if reading >= 0:
            os.close(reading)


def _first_bytes(chunks: Iterator[bytes]) -> bytes:
    collected = bytearray()
    for chunk in chunks:
        collected += chunk
        if len(collected) >= WHOLE_BYTES:
            break
    return bytes(collected)


def _write(pipe: int, data: bytes) -> bool:
    """Write all. Return False if the client is gone or reads nothing."""
    rest = memoryview(data)
    ready = select.poll()
    ready.register(pipe, select.POLLOUT)
    while rest:
        try:
            rest = rest[os.write(pipe, rest) :]
        except BlockingIOError:
            if not ready.poll(STALL_SECONDS * 1000):
                return False
        except BrokenPipeError:
            return False
    return True
