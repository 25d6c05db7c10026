"""An answer that is made while it is sent is made no faster than its client reads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.waiting import until
from web.front import streams
from web.front.streams import WHOLE_BYTES, send_stream

CHUNK = b"x" * 100_000
HEADERS = [("content-type", "text/csv")]


class Granian:
    """Granian's end of an answer. `open` opens the file that it was told to send."""

    def __init__(self) -> None:
        self.whole: bytes | None = None
        self.path = ""

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        assert (status, headers) == (200, HEADERS)
        self.whole = body

    def response_file(self, status: int, headers: list[tuple[str, str]], path: str) -> None:
        assert (status, headers) == (200, HEADERS)
        self.path = path

    def open(self) -> int:
        until(lambda: self.path)
        return os.open(self.path, os.O_RDONLY)


class Chunks:
    def __init__(self, count: int) -> None:
        self.count, self.made = count, 0

    def __iter__(self) -> Iterator[bytes]:
        while self.made < self.count:
            self.made += 1
            yield CHUNK


def sending(granian: Granian, chunks: Chunks) -> threading.Thread:
    thread = threading.Thread(target=send_stream, args=(granian, 200, HEADERS, chunks))
    thread.start()
    return thread


def read_all(pipe: int) -> int:
    total = 0
    while data := os.read(pipe, 65_536):
        total += len(data)
    os.close(pipe)
    return total


def open_files() -> int:
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    before = open_files()
    yield
    assert open_files() == before


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_short_answer_is_sent_whole(count):
    granian = Granian()
    send_stream(granian, 200, HEADERS, Chunks(count))
    assert granian.whole == CHUNK * count and len(granian.whole) < WHOLE_BYTES


def test_a_long_answer_waits_for_its_reader_and_arrives_complete():
    granian, chunks = Granian(), Chunks(100)
    thread = sending(granian, chunks)
    pipe = granian.open()
    assert chunks.made == 3  # no more than what was collected first
    assert read_all(pipe) == 100 * len(CHUNK)
    thread.join()


def test_an_answer_ends_when_its_client_goes():
    granian, chunks = Granian(), Chunks(10_000)
    thread = sending(granian, chunks)
    pipe = granian.open()
    for _ in range(10):
        os.read(pipe, 65_536)
    os.close(pipe)
    thread.join()
    assert chunks.made < 100


@pytest.mark.parametrize("reads", [0, 10], ids=["never opened", "opened"])
def test_an_answer_ends_when_its_client_reads_no_more(monkeypatch, reads):
    monkeypatch.setattr(streams, "STALL_SECONDS", 0.1)
    granian, chunks = Granian(), Chunks(10_000)
    thread = sending(granian, chunks)
    if reads:
        pipe = granian.open()
        for _ in range(reads):
            os.read(pipe, 65_536)
    thread.join()
    if reads:
        os.close(pipe)
    assert chunks.made < 100
