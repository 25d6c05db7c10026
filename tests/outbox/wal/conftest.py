from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from outbox.wal.stream import Stream
from tests.outbox.wal.server import SCHEMA, WATCHED, WalServer, running
from tests.waiting import until


@pytest.fixture(scope="session")
def server() -> Iterator[WalServer]:
    with running(max_slot_wal_keep_size="64MB") as server:
        server.sql(SCHEMA)
        yield server


@pytest.fixture
def db(server: WalServer) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Return a session. Empty the tables after the test."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        yield connection
        connection.execute("TRUNCATE mails, events, others")


@pytest.fixture
def stream(server: WalServer) -> Iterator[Stream]:
    """Return a stream that has begun."""
    with closing(Stream(params=server.params(), watched=WATCHED)) as stream:
        stream.check()
        until(stream.lead)  # the session of the previous test may still be closing
        stream.begin()
        yield stream
