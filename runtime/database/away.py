"""Tell an error that is the database's own state from one that a statement or a row caused.

A full disk, a shutdown or a standby fails any work, and must use up no try of it. Everything that counts
tries asks this module.
"""

from __future__ import annotations

import datetime as dt
import threading

import psycopg
from django.db import InterfaceError, OperationalError, connection

from runtime.database.postgres.connection import ServerSilent
from runtime.faults import ServerTrouble, causes_of
from runtime.lateness import lateness

#: Classes of PostgreSQL's error codes: no resources (a full disk, too many connections), an operator's
#: intervention (a shutdown, a server that starts), and errors outside of PostgreSQL (a disk that fails).
AWAY_CLASSES = ("53", "57", "58")
LOCK_NOT_AVAILABLE = "55P03"  # after `lock_timeout`: another session holds a row for too long
READ_ONLY = "25006"  # read_only_sql_transaction: a standby, or a server that was made read-only
#: query_canceled, by a limit such as `statement_timeout`. It is of class 57, but a statement that always
#: takes too long must fail in the end.
CANCELLED = "57014"


#: How libpq says that no connection is left, for which it passes no code on: for anybody, for ordinary roles,
#: for one role or one database.
_FULL = ("too many clients", "connection slots are reserved", "too many connections for")


class Silence:
    """Since when this process gets no answer from PostgreSQL."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.since: dt.datetime | None = None

    def begin(self) -> dt.datetime:
        """Note that no answer came. Return since when that is so."""
        with self._lock:
            self.since = self.since or dt.datetime.now(dt.UTC)
            return self.since

    def end(self) -> None:
        self.since = None


silence = Silence()


def explain_silence(error: BaseException) -> ServerTrouble:
    """Return why PostgreSQL gives no answer, without its host, and what to do on its host."""
    if any(words in str(error) for words in _FULL):
        return ServerTrouble(
            "PostgreSQL refuses new connections",
            "all are in use: `ps aux | grep 'postgres:'` on its host lists them without a connection; end"
            " idle ones by `kill PID`, and see DatabaseConnectionsLow",
        )
    late = (ServerSilent, psycopg.errors.ConnectionTimeout)
    if any(isinstance(cause, late) for cause in causes_of(error)):
        if lateness.is_overloaded():
            return ServerTrouble(
                "this machine is overloaded, and PostgreSQL does not answer",
                "see by `top` who uses the processors; restart nothing; `kill -CONT` what is frozen (T)",
            )
        return ServerTrouble(
            "PostgreSQL does not answer",
            "it is frozen, or its host is away: `kill -CONT` its processes, restart its host, or fail over",
        )
    return ServerTrouble("PostgreSQL does not answer", "start it again, make room on its disk, or fail over")


def sqlstate_of(error: BaseException) -> str | None:
    """Return PostgreSQL's code of an error of Django, or None if the server did not send one."""
    state: str | None = getattr(error.__cause__, "sqlstate", None)
    return state


def is_refusing(error: BaseException) -> bool:
    """Return whether PostgreSQL said that its own state is the cause."""
    state = sqlstate_of(error) or ""
    is_state = state[:2] in AWAY_CLASSES and state != CANCELLED
    return is_state or state in (READ_ONLY, LOCK_NOT_AVAILABLE)


def is_lock_timeout(error: BaseException) -> bool:
    """Return whether another session holds a row for too long. Nothing was changed."""
    return sqlstate_of(error) == LOCK_NOT_AVAILABLE


def is_away(error: BaseException) -> bool:
    """Return whether the database's state caused `error`, and the same work may succeed later.

    An error without a code is a lost connection. It counts as the work's own if a new connection works, since
    the work may have killed its server process. Call this outside of a transaction.
    """
    if is_refusing(error):
        return True
    return isinstance(error, OperationalError | InterfaceError) and not connection.is_usable()


def describe_away(error: BaseException) -> str | None:
    """Return one line for an error that the database's state caused, and that needs no traceback.

    Return None for any other error. A statement that the server did not answer in time is one of those: the
    traceback names it.
    """
    is_lost = sqlstate_of(error) is None and isinstance(error, OperationalError | InterfaceError)
    if not is_refusing(error) and (not is_lost or isinstance(error.__cause__, ServerSilent)):
        return None
    return str(error).partition("\n")[0]
