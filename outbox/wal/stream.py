"""One replication connection: it tries to lead, makes a temporary slot, and receives commits.

PostgreSQL removes the leader's advisory lock and the slot with the connection. So no slot of a dead follower
remains that would keep WAL on PostgreSQL's disk. The protocol is
https://www.postgresql.org/docs/current/protocol-replication.html.
"""

from __future__ import annotations

import select
import struct
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg import errors, generators, pq

from outbox.database.postgres.connection import BoundedConnection
from outbox.wal import publication
from outbox.wal.pgoutput import EPOCH, Committed, Decoder, Watched

#: The advisory lock of the one follower that receives a database's changes.
LOCK = 0x77616C66  # "walf"
#: Making a slot waits for open transactions. After so long, the follower tries again.
SLOT_SECONDS = 60.0
#: How often received positions are reported, so that PostgreSQL can remove its WAL.
REPORT_SECONDS = 1.0
#: How often to request an answer, and after how long without one the server counts as dead.
PING_SECONDS, SILENT_SECONDS = 5.0, 20.0
#: How long PostgreSQL waits for this client before it closes the session, so that another follower can lead.
SENDER_TIMEOUT = "20s"


class NotReady(Exception):
    """A setting of the server, the role or the URL prevents following. The text says what to do."""


class StreamEnded(Exception):
    """The server closed the stream, or does not answer."""


class Stream:
    """A connection of `params` (psycopg's, with `deadline` and `gate`) for the changes of some tables."""

    def __init__(self, *, params: Mapping[str, Any], watched: Sequence[Watched]) -> None:
        self._watched = watched
        self._decoder = Decoder(watched)
        #: The position up to which everything was received, or 0 before `begin`.
        self.position = 0
        self.slot = ""
        self._connection = _connect(params)
        self._socket = select.poll()
        self._socket.register(self._connection.pgconn.socket, select.POLLIN)

    def close(self) -> None:
        """Close the session, which also removes the lock and the slot."""
        self._connection.close()

    def check(self) -> None:
        """Raise `NotReady` if the server or the role cannot follow."""
        ask = self._connection.execute
        try:
            ask("IDENTIFY_SYSTEM")
        except (errors.SyntaxError, errors.ProtocolViolation) as error:
            raise NotReady(
                f"REPLICATION_DATABASE_URL leads to a pooler, not to PostgreSQL itself: {error}"
            ) from error
        ask(f"SET wal_sender_timeout = '{SENDER_TIMEOUT}'".encode())
        ask("SET statement_timeout = 0")  # a role's limit would abort the wait for a slot
        ((level,),) = ask("SHOW wal_level").fetchall()
        if level != "logical":
            raise NotReady(
                f"PostgreSQL has wal_level = {level}. Set wal_level = logical in postgresql.conf and restart"
                " PostgreSQL."
            )
        if wrong := publication.wrong(self._connection, self._watched):
            raise NotReady(
                f"No publication {', '.join(wrong)} as it must be. Run"
                " `manage.py follow_wal --make-publications` once, with the tables' owner in"
                " PARTITION_DATABASE_URL."
            )

    def lead(self) -> bool:
        """Try to take the lock of the one follower that receives. Return whether this session has it."""
        text = f"SELECT pg_try_advisory_lock({LOCK}, 0)".encode()
        ((taken,),) = self._connection.execute(text).fetchall()
        return bool(taken)

    def begin(self) -> int:
        """Make the slot and start to receive. Return the position from which everything is received."""
        self.slot = f"orderpost_{uuid.uuid4().hex[:12]}"
        slot = f"CREATE_REPLICATION_SLOT {self.slot} TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT"
        with self._connection.waiting(seconds=SLOT_SECONDS):
            ((_, start, *_),) = self._connection.execute(slot.encode()).fetchall()
        names = ",".join(publication.name_of(one) for one in self._watched)
        pgconn = self._connection.pgconn
        pgconn.send_query(
            f"START_REPLICATION SLOT {self.slot} LOGICAL 0/0"
            f" (proto_version '1', publication_names '{names}')".encode()
        )
        (result, *_) = self._connection.wait(generators.execute(pgconn))
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise StreamEnded(_why(result))
        self._heard_at = self._pinged_at = self._reported_at = time.monotonic()
        high, low = start.split("/")
        self.position = (int(high, 16) << 32) + int(low, 16)
        return self.position

    def receive(self, *, seconds: float) -> Committed | None:
        """Return the next transaction that wrote rows that count, or None after `seconds`.

        Raise `StreamEnded`, and `psycopg.OperationalError` for a lost connection.
        """
        until = time.monotonic() + seconds
        lost: psycopg.OperationalError | None = None
        pgconn = self._connection.pgconn
        while True:
            size, data = pgconn.get_copy_data(1)
            now = time.monotonic()
            if size < 0:
                raise StreamEnded(_why(pgconn.get_result()))
            if size > 0:
                self._heard_at = now
                if committed := self._read(bytes(data)):
                    return committed
            self._report(now)
            if now >= until:
                return None
            if size == 0:
                if lost is not None:
                    raise lost
                if self._socket.poll(min(until - now, REPORT_SECONDS) * 1000):
                    try:
                        pgconn.consume_input()
                    except psycopg.OperationalError as error:
                        lost = error  # raise it later, because received data may have the reason
                elif now - self._heard_at > SILENT_SECONDS:
                    raise StreamEnded(f"the server was silent for {SILENT_SECONDS:g} s")

    def _read(self, data: bytes) -> Committed | None:
        if data[:1] == b"k":
            position, _, answer = struct.unpack_from(">QqB", data, 1)
            self.position = max(self.position, position)
            if answer:
                self._reported_at = 0.0
        elif data[:1] == b"w" and (done := self._decoder.read(data[25:])) is not None:
            self.position = max(self.position, done.position)
            return done if done.tables else None
        return None

    def _report(self, now: float) -> None:
        """Report the received position to the server. It need not be exact, because no slot is resumed."""
        if now - self._reported_at < REPORT_SECONDS:
            return
        ping = now - self._pinged_at >= PING_SECONDS
        self._reported_at, self._pinged_at = now, now if ping else self._pinged_at
        micros = int((time.time() - EPOCH) * 1_000_000)
        at = self.position
        pgconn = self._connection.pgconn
        pgconn.put_copy_data(b"r" + struct.pack(">QQQqB", at, at, at, micros, ping))
        pgconn.flush()  # the next report sends what the server does not take now


def _connect(params: Mapping[str, Any]) -> BoundedConnection:
    """Open a replication session. Raise `NotReady` if the server refuses only replication."""
    replication = {"replication": "database", "autocommit": True, "prepare_threshold": None}
    try:
        return BoundedConnection.connect(**{**params, **replication})
    except psycopg.OperationalError as refused:
        try:
            BoundedConnection.connect(**params).close()
        except psycopg.OperationalError:
            raise refused from None  # no session at all: the server is away, or the URL is wrong
        raise NotReady(
            "REPLICATION_DATABASE_URL lets this role in, but not to replicate: it needs the attribute"
            " REPLICATION (docker/replication_role.sql), a free place in max_wal_senders, and a URL that"
            f" leads to PostgreSQL itself, not to pgbouncer. The server says: {str(refused).strip()}"
        ) from refused


def _why(result: pq.abc.PGresult | None) -> str:
    """Return why the server closed a stream."""
    text = result.error_message.decode(errors="replace").strip() if result is not None else ""
    return text or "the server ended the stream"
