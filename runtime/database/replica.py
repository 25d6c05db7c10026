"""Read lists, charts and metrics from a standby of PostgreSQL, `REPLICA_DATABASE_URL`.

`read` calls a function that only reads. Within it, `Router` sends Django's queries to the replica, and
`alias` names the server for a cursor. The primary answers instead while the replica is gone, promoted, or
more than `LIMIT_SECONDS` behind. A replica that failed is left alone for `AWAY_SECONDS`, and the primary
answers the read that met the failure.

A replica that has replayed a position of the WAL has every commit from before the moment at which the
primary was there. So `watch` notes the primary's position once a second, and each read asks its own
connection whether that replica has replayed the position of `LIMIT_SECONDS` ago. Unlike
`pg_last_xact_replay_timestamp()`, a position is also right while nobody writes, and depends on no clock.
"""

from __future__ import annotations

import contextvars
import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import structlog
from django.conf import settings
from django.db import (
    DEFAULT_DB_ALIAS,
    DatabaseError,
    InterfaceError,
    OperationalError,
    close_old_connections,
    connections,
    models,
)

log = structlog.get_logger(__name__)

ALIAS = "replica"
#: The heartbeat that web processes write while they find the replica fresh enough.
FOLLOWS = "replica"
LIMIT_SECONDS = 5.0
#: Between two looks at the primary's position.
LOOK_SECONDS = 1.0
#: How long a replica that failed is left alone.
AWAY_SECONDS = 10.0
#: How long a replica may take to tell its position.
TELL_SECONDS = 1.0
#: Tables that say what a user may do. A right that was taken away must end at once.
_OF_PRIMARY = {"auth", "axes", "sessions"}

T = TypeVar("T")

_is_reading: contextvars.ContextVar[bool] = contextvars.ContextVar("is_reading", default=False)


class Unfit(OperationalError):
    """The replica's answer would be too old."""


def is_set() -> bool:
    return ALIAS in settings.DATABASES


def alias() -> str:
    """Return the database of the present read: the replica's only within `read`, outside transactions."""
    if _is_reading.get() and not connections[DEFAULT_DB_ALIAS].in_atomic_block:
        return ALIAS
    return DEFAULT_DB_ALIAS


class Router:
    """Sends reads within `read` to the replica. Rows that came from it are written on the primary."""

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str | None:
        if model._meta.app_label not in _OF_PRIMARY and alias() == ALIAS:
            return ALIAS
        return self.db_for_write(model, **hints)

    def db_for_write(self, model: type[models.Model], **hints: Any) -> str | None:
        return DEFAULT_DB_ALIAS if _database_of(hints.get("instance")) == ALIAS else None

    def allow_relation(self, one: models.Model, other: models.Model, **hints: Any) -> bool | None:
        return True if ALIAS in (_database_of(one), _database_of(other)) else None


def _database_of(row: models.Model | None) -> str | None:
    return None if row is None else row._state.db


@dataclasses.dataclass(slots=True)
class Walk:
    """The pages of one list. No page is older than the page before it.

    `since` is the position of the WAL that the next page's replica must have replayed. It is None if the
    primary must read the page, because it has read one before.
    """

    since: int | None = 0

    @classmethod
    def on_primary(cls) -> Walk:
        return cls(None)


class _Position(NamedTuple):
    """The primary had not written more than `lsn` at the monotonic time `at`."""

    at: float
    lsn: int


class Replica:
    """The process's knowledge about the replica. `now` is a monotonic clock."""

    def __init__(self, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._positions: tuple[_Position, ...] = ()  # of the last LIMIT_SECONDS, oldest first
        self._follows = False
        self._away_until = 0.0

    def required(self) -> int | None:
        """Return the position that a replica must have replayed, or None if no replica may be read."""
        now = self._now()
        if not self._follows or now < self._away_until:
            return None
        return next((one.lsn for one in self._positions if now - one.at <= LIMIT_SECONDS), None)

    def look(self) -> bool:
        """Note the primary's position, and return whether the replica follows it closely enough.

        Raise the primary's errors. The first look only notes.
        """
        at = self._now()
        lsn = _written()
        kept = tuple(one for one in self._positions if at - one.at <= LIMIT_SECONDS)
        self._positions = (*kept, _Position(at, lsn))
        if not kept or at < self._away_until:
            return False
        try:
            _require(self._positions[0].lsn)
        except (DatabaseError, InterfaceError) as error:
            self.leave_alone(error)
            return False
        if not self._follows:
            log.info("replica is read")
        self._follows = True
        return True

    def leave_alone(self, error: Exception) -> None:
        """Read from the primary for `AWAY_SECONDS`, and connect again afterwards."""
        connections[ALIAS].close()
        self._away_until = self._now() + AWAY_SECONDS
        if self._follows:
            log.warning("replica is left alone", error=str(error).strip())
        self._follows = False


_replica = Replica()


def _written() -> int:
    """Return the primary's position."""
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")
        return int(cursor.fetchone()[0])


def _replayed() -> int:
    """Return the position that this thread's replica has replayed, or -1 if it is a primary now."""
    database = connections[ALIAS]
    if database.connection is not None and not database.connection.is_alive(seconds=math.inf):
        database.close()  # the server has closed it, for example at a restart
    database.ensure_connection()
    with database.connection.waiting(seconds=TELL_SECONDS), database.cursor() as cursor:
        cursor.execute(
            "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() - '0/0'::pg_lsn ELSE -1 END"
        )
        return int(cursor.fetchone()[0])


def _require(lsn: int) -> int:
    """Return the replica's position. Raise `Unfit` if it has not replayed `lsn`, or was promoted."""
    if (replayed := _replayed()) < lsn:
        raise Unfit("it is more than 5 s behind" if replayed >= 0 else "it does not follow a primary")
    return replayed


def read(work: Callable[[], T], *, walk: Walk | None = None) -> T:
    """Return what `work` returns, which only reads, and may be called twice.

    With `walk`, read a page that is not older than the page before it, and note the position of this one.
    """
    if _is_reading.get():
        return work()
    since = 0 if walk is None else walk.since
    required = None if since is None or not is_set() else _replica.required()
    if since is not None and required is not None:
        entered = _is_reading.set(True)
        try:
            if _require(required) >= since:
                found = work()
                if walk is not None:
                    walk.since = _require(required)  # it may have been promoted meanwhile
                return found
        except (OperationalError, InterfaceError) as error:
            _replica.leave_alone(error)
        except DatabaseError as error:  # for example, a migration that it has not replayed
            log.info("the primary answers instead of the replica", error=str(error).strip())
        finally:
            _is_reading.reset(entered)
    if walk is not None:
        walk.since = None
    return work()


def watch(*, beat: Callable[[], None]) -> None:
    """Look once a second until the process exits, and call `beat` while the replica follows."""
    while True:
        try:
            close_old_connections()
            if _replica.look():
                beat()
        except (DatabaseError, InterfaceError):  # of the primary, about which others tell
            connections[DEFAULT_DB_ALIAS].close()
        time.sleep(LOOK_SECONDS)
