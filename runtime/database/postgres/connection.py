"""A psycopg connection with bounded waits, and turns that prevent threads from queueing to connect."""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import psycopg
from django.core.exceptions import ImproperlyConfigured
from psycopg import errors
from psycopg._preparing import Key, Prepare, PrepareManager
from psycopg.abc import PQGen
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult

T = TypeVar("T")

#: How long a thread waits for another thread's attempt to reach a server that has not answered.
TURN_SECONDS = 0.5
#: How long the first statement of a new connection to such a server may take.
FIRST_ANSWER_SECONDS = 3.0
FOREVER_SECONDS = 1e9  # seconds


class ServerSilent(psycopg.OperationalError):
    """The server did not answer in time. It may have executed the statement, or may still do so."""


class PoolerFound(ImproperlyConfigured):
    """The URL of a setting leads to a pooler, but must not.

    A pooler may give another client's session to each transaction. Nothing that belongs to a session works
    then, such as an advisory lock or `SET`.
    """

    def __init__(self, *, setting: str, why: str) -> None:
        super().__init__(
            f"{setting} leads to a pooler, such as pgbouncer. {why}"
            f" Set {setting} to the address of PostgreSQL itself."
        )


class ConnectLock:
    """Let one thread at a time connect to a server that has just been silent.

    Otherwise each thread of a web process would wait for its own connect timeout, and the requests behind
    them would wait even longer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Whether the server left the last request without an answer.
        self.silent = False
        #: Host and port of the last connection, if the URL names several servers.
        self.last: tuple[str, str] | None = None

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Enclose one attempt to connect. Raise `ServerSilent` if another thread tries for `TURN_SECONDS`."""
        mine = self.silent and self._lock.acquire(timeout=TURN_SECONDS)
        try:
            if self.silent and not mine:
                raise ServerSilent("the database server does not answer; another thread is trying to connect")
            yield
            self.silent = False
        except errors.ConnectionTimeout:
            self.silent = True
            raise
        finally:
            if mine:
                self._lock.release()


def _last_first(params: Mapping[str, Any], *, last: tuple[str, str] | None) -> dict[str, Any]:
    """Begin with the server of the last connection. Each dead server before it would take seconds."""
    hosts, ports = (str(params.get(name, "")).split(",") for name in ("host", "port"))
    if len(hosts) < 2 or len(hosts) != len(ports):
        return dict(params)
    servers = sorted(zip(hosts, ports, strict=True), key=lambda server: server != last)
    return {
        **params,
        "host": ",".join(host for host, _ in servers),
        "port": ",".join(port for _, port in servers),
    }


class PreparedStatements(PrepareManager):
    """The prepared statements of a session. They outlive a rollback, and one that fails, as in PostgreSQL.

    psycopg would forget them all after a rollback, which may have undone a table. PostgreSQL looks a table up
    again and plans anew, so each refused change would pay for new plans of everything.
    """

    #: Whether PostgreSQL has lost one, or cannot use it any more.
    is_stale = False

    def clear(self) -> bool:
        """Forget them all if one is stale. psycopg calls this after a rollback."""
        if not self.is_stale:
            return False
        self.is_stale = False
        return super().clear()

    def validate(self, key: Key, prep: Prepare, name: bytes, results: Sequence[PGresult]) -> None:
        if prep is Prepare.SHOULD:
            self._rotate()
        else:
            super().validate(key, prep, name, results)


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that waits at most `deadline_seconds` for each statement, commit or piece of a COPY.

    None means that it waits for ever.
    """

    deadline_seconds: float | None = None
    #: The minimum of all deadlines of this process, see `patient`.
    patience_seconds: ClassVar[float] = 0.0
    turn: ConnectLock
    #: For each statement that PreparingCursor prepares: its uses, its present text, and since when it has it.
    uses: dict[str, tuple[int, str, float]]
    #: Whether the present statement brings BEGIN itself.
    brings_begin = False
    _answered_at = 0.0
    _prepared: PreparedStatements

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._prepared = PreparedStatements()

    def _start_query(self) -> PQGen[None]:
        if not self.brings_begin:
            yield from super()._start_query()

    @classmethod
    def connect(  # type: ignore[override]  # Django's alone: by keyword
        cls, *, deadline: float | None, turn: ConnectLock, **params: Any
    ) -> Self:
        with turn.attempt():
            connection = super().connect(**_last_first(params, last=turn.last))
            turn.last = connection.info.host, str(connection.info.port)
            connection.turn, connection.uses = turn, {}
            if turn.silent:  # a pooler accepts connections even if its server does not answer
                connection.autocommit = True
                with connection.waiting(seconds=FIRST_ANSWER_SECONDS):
                    connection.execute("SELECT 1")
                connection.autocommit = False
        connection.deadline_seconds = deadline
        return connection

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait as psycopg does. After `deadline_seconds`, close the connection and raise `ServerSilent`."""
        if timeout is not None or self.deadline_seconds is None:
            return super().wait(gen, interval, timeout)
        seconds = max(self.deadline_seconds, self.patience_seconds)
        try:
            answer = super().wait(gen, interval, seconds)
            self._answered_at = time.monotonic()
            return answer
        except errors._WaitTimeout:
            # The answer may still come at any time, so the socket cannot be used again.
            self.pgconn.finish()
            self.turn.silent = True
            raise ServerSilent(
                f"the database server did not answer within {seconds:g} s; the connection was closed"
            ) from None

    def forget_prepared(self) -> None:
        """Prepare all statements anew. In a transaction, this begins when it is rolled back."""
        self._prepared.is_stale = True
        if self.pgconn.transaction_status == TransactionStatus.IDLE:
            self._prepared.clear()
            self.wait(self._prepared.maintain_gen(self))

    def is_alive(self, *, seconds: float) -> bool:
        """Return whether the server answered within the last `seconds` and has sent nothing since.

        If the server has closed the session, the socket has data to read. This method sends no packet.
        """
        if self.closed or time.monotonic() - self._answered_at > seconds:
            return False
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        return not poll.poll(0)

    @contextlib.contextmanager
    def waiting(self, *, seconds: float | None) -> Iterator[None]:
        """Change the deadline within the block."""
        before, self.deadline_seconds = self.deadline_seconds, seconds
        try:
            yield
        finally:
            self.deadline_seconds = before


@contextlib.contextmanager
def patient(*, seconds: float) -> Iterator[None]:
    """Within the block, wait at least `seconds` for each statement of this process, or with 0 for ever.

    For commands that read whole tables, and for which nobody waits.
    """
    before, BoundedConnection.patience_seconds = (
        BoundedConnection.patience_seconds,
        seconds or FOREVER_SECONDS,
    )
    try:
        yield
    finally:
        BoundedConnection.patience_seconds = before
