"""A separate PostgreSQL for the WAL's tests, because a slot waits for every transaction of its server."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import psycopg.conninfo

from local.machine import free_port
from local.servers import EmbeddedPostgres
from outbox.database.postgres.connection import Gate
from outbox.wal.pgoutput import Watched

MAILS = Watched("mails", column="status", values=frozenset({"pending", "failed"}), has_updates=True)
EVENTS = Watched("events")
WATCHED = (MAILS, EVENTS)

SCHEMA = """
    CREATE TABLE mails (id int PRIMARY KEY, body text, status text NOT NULL) PARTITION BY RANGE (id);
    CREATE TABLE mails_1 PARTITION OF mails FOR VALUES FROM (0) TO (1000000);
    CREATE TABLE events (id int PRIMARY KEY, payload text) PARTITION BY RANGE (id);
    CREATE TABLE events_1 PARTITION OF events FOR VALUES FROM (0) TO (1000000);
    CREATE TABLE others (id int PRIMARY KEY, text text);
    CREATE PUBLICATION orderpost_mails FOR TABLE mails
        WITH (publish = 'insert, update', publish_via_partition_root = true);
    CREATE PUBLICATION orderpost_events FOR TABLE events
        WITH (publish = 'insert', publish_via_partition_root = true);
"""


class WalServer(EmbeddedPostgres):
    """A throw-away server with additional settings."""

    def __init__(self, folder: Path, **settings: str) -> None:
        super().__init__(data=folder / "postgres", port=free_port(), throwaway=True)
        self.settings = settings

    def argv(self) -> list[str]:
        more = [part for name, value in self.settings.items() for part in ("-c", f"{name}={value}")]
        return [*super().argv(), *more]

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements, each in a separate transaction. Return the rows of the last."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def params(self, **changes: Any) -> dict[str, Any]:
        """Return the parameters of a replication connection."""
        given = psycopg.conninfo.conninfo_to_dict(self.url)
        return {**given, "connect_timeout": 5, "deadline": 30.0, "gate": Gate(), **changes}

    @contextmanager
    def database(self) -> Iterator[str]:
        """Make a database with the tables of these tests, yield its name, and drop it."""
        name = f"wal_{uuid.uuid4().hex[:8]}"
        self.sql(f"CREATE DATABASE {name}")
        with psycopg.connect(self.url, dbname=name, autocommit=True) as connection:
            connection.execute(SCHEMA)
        try:
            yield name
        finally:
            self.sql(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def running(**settings: str) -> Iterator[WalServer]:
    with tempfile.TemporaryDirectory(prefix="orderpost-wal-") as folder:
        server = WalServer(Path(folder), **settings)
        server.start(log=Path(folder) / "postgres.log")
        try:
            yield server
        finally:
            server.stop()
            server.remove()
