"""A psycopg connection that waits a bounded time, and a gate that keeps threads from queueing to connect."""

from __future__ import annotations

import contextlib
import select
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self, TypeVar

import psycopg
from psycopg import errors
from psycopg.abc import PQGen

T = TypeVar("T")

#: How long a thread waits for another thread's attempt to reach a server that has not answered.
TURN_SECONDS = 0.5
#: How long the first statement of a new connection to such a server may take.
FIRST_ANSWER_SECONDS = 3.0
FOREVER_SECONDS = 1e9  # seconds


class ServerSilent(psycopg.OperationalError):
    """The server did not answer in time. What it was asked to do may have happened, or may happen yet."""


class Gate:
    """Lets one thread at a time connect to a server that has just been silent.

    Without it each of a web process's threads waits for its own connect time-out, and requests queue
    behind them for longer than any of them waits.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        #: Whether the server did not answer when it was last asked.
        self.silent = False
        #: Of several servers the one that was connected to last: host and port.
        self.last: tuple[str, str] | None = None

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """Enclose one attempt to connect. Raises `ServerSilent` at once while another thread tries."""
        mine = self.silent and self._turn.acquire(timeout=TURN_SECONDS)
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
                self._turn.release()


def _last_first(params: Mapping[str, Any], *, last: tuple[str, str] | None) -> dict[str, Any]:
    """Begin with the server that took the last connection: each one before it that is gone takes seconds."""
    hosts, ports = (str(params.get(name, "")).split(",") for name in ("host", "port"))
    if len(hosts) < 2 or len(hosts) != len(ports):
        return dict(params)
    servers = sorted(zip(hosts, ports, strict=True), key=lambda server: server != last)
    return {
        **params,
        "host": ",".join(host for host, _ in servers),
        "port": ",".join(port for _, port in servers),
    }


class BoundedConnection(psycopg.Connection[Any]):
    """Waits at most `deadline_seconds` for each statement, commit or piece of a COPY; None: for ever."""

    deadline_seconds: float | None = None
    #: No deadline of this process is shorter: see `patient`.
    patience_seconds: ClassVar[float] = 0.0
    gate: Gate
    #: Of each statement that PreparingCursor prepares: how often it was used, and its present text.
    uses: dict[str, tuple[int, str]]
    _answered_at = 0.0

    @classmethod
    def connect(  # type: ignore[override]  # Django's alone: by keyword
        cls, *, deadline: float | None, gate: Gate, **params: Any
    ) -> Self:
        with gate.attempt():
            connection = super().connect(**_last_first(params, last=gate.last))
            gate.last = connection.info.host, str(connection.info.port)
            connection.gate, connection.uses = gate, {}
            if gate.silent:  # a pooler takes connections for a server that does not answer
                connection.autocommit = True
                with connection.waiting(seconds=FIRST_ANSWER_SECONDS):
                    connection.execute("SELECT 1")
                connection.autocommit = False
        connection.deadline_seconds = deadline
        return connection

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Wait as psycopg does. Closes the connection and raises `ServerSilent` after `deadline_seconds`."""
        if timeout is not None or self.deadline_seconds is None:
            return super().wait(gen, interval, timeout)
        seconds = max(self.deadline_seconds, self.patience_seconds)
        try:
            answer = super().wait(gen, interval, seconds)
            self._answered_at = time.monotonic()
            return answer
        except errors._WaitTimeout:
            # The socket is in the middle of an answer that may come at any time: it cannot be used again.
            self.pgconn.finish()
            self.gate.silent = True
            raise ServerSilent(
                f"the database server did not answer within {seconds:g} s; the connection was closed"
            ) from None

    def is_alive(self, *, seconds: float) -> bool:
        """Tell whether the server answered within these seconds, and has sent nothing since.

        A server that ends a session says so: the socket has something to read. No packet is sent here.
        """
        if self.closed or time.monotonic() - self._answered_at > seconds:
            return False
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        return not poll.poll(0)

    @contextlib.contextmanager
    def waiting(self, *, seconds: float | None) -> Iterator[None]:
        """Wait for another time within the block."""
        before, self.deadline_seconds = self.deadline_seconds, seconds
        try:
            yield
        finally:
            self.deadline_seconds = before


@contextlib.contextmanager
def patient(*, seconds: float) -> Iterator[None]:
    """Give each statement of this process at least so long within the block; 0: for ever.

    For commands that read whole tables, and that nobody waits for.
    """
    before, BoundedConnection.patience_seconds = (
        BoundedConnection.patience_seconds,
        seconds or FOREVER_SECONDS,
    )
    try:
        yield
    finally:
        BoundedConnection.patience_seconds = before
