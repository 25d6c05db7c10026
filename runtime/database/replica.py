"""Let a standby of PostgreSQL, `REPLICA_DATABASE_URL`, answer what may be some seconds late.

`read` calls a function that only reads. Within it, `Router` sends Django's queries to the replica, and
`alias` names the server for a cursor. The primary answers instead while the replica is gone, promoted, or
more than `LIMIT_SECONDS` behind, and for `SKIP_SECONDS` after that.

A replica is as old as the last commit that it has replayed. While nobody writes, there must be commits
nevertheless: if a replica is set, each web process beats every two seconds (web/heartbeat.py). The age
compares the clocks of the two servers.
"""

from __future__ import annotations

import contextvars
import math
import time
from collections.abc import Callable
from typing import Any, TypeVar

import structlog
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, DatabaseError, InterfaceError, OperationalError, connections, models

log = structlog.get_logger(__name__)

ALIAS = "replica"
#: The heartbeat that web processes write while they find the replica fresh enough.
FOLLOWS = "replica"
LIMIT_SECONDS = 5.0
#: How long the primary answers after the replica could not.
SKIP_SECONDS = 10.0
#: Apps whose tables say what a user may do. A right that was taken away must end at once.
_OF_PRIMARY = {"auth", "axes", "sessions"}

T = TypeVar("T")

_is_reading: contextvars.ContextVar[bool] = contextvars.ContextVar("is_reading", default=False)
# Of this process: whether the last try was answered, and the monotonic time of the next one.
_is_read = False
_skipped_until = 0.0


class Router:
    """Sends reads within `read` to the replica. Rows that came from it are written on the primary."""

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str | None:
        if model._meta.app_label not in _OF_PRIMARY and alias() == ALIAS:
            return ALIAS
        return self.db_for_write(model, **hints)

    def db_for_write(self, model: type[models.Model], **hints: Any) -> str | None:
        return DEFAULT_DB_ALIAS if _database_of(hints.get("instance")) == ALIAS else None

    def allow_relation(self, row: models.Model, other: models.Model, **hints: Any) -> bool | None:
        return True if ALIAS in (_database_of(row), _database_of(other)) else None


def _database_of(row: models.Model | None) -> str | None:
    return None if row is None else row._state.db


def is_set() -> bool:
    return ALIAS in settings.DATABASES


def alias() -> str:
    """Return the database of the present read: the replica's only within `read`, outside transactions."""
    if _is_reading.get() and not connections[DEFAULT_DB_ALIAS].in_atomic_block:
        return ALIAS
    return DEFAULT_DB_ALIAS


def read(work: Callable[[], T]) -> T:
    """Return what `work` returns, which only reads, and may be called twice."""
    global _is_read, _skipped_until
    if not is_set() or _is_reading.get() or time.monotonic() < _skipped_until:
        return work()
    entered = _is_reading.set(True)
    try:
        _check_age()
        result = work()
    except (DatabaseError, InterfaceError) as error:  # for example, a migration that it has not replayed
        connections[ALIAS].close()
        _skipped_until = time.monotonic() + SKIP_SECONDS
        if _is_read:
            log.warning("replica skipped", error=str(error).strip())
        _is_read = False
    else:
        if not _is_read:
            log.info("replica is read")
        _is_read = True
        return result
    finally:
        _is_reading.reset(entered)
    return work()


def _check_age() -> None:
    """Raise `OperationalError` unless this thread's replica is fresh enough."""
    database = connections[ALIAS]
    if database.connection is not None and not database.connection.is_alive(seconds=math.inf):
        database.close()  # the server has closed it, for example at a restart
    with database.cursor() as cursor:
        cursor.execute(
            "SELECT pg_is_in_recovery(),"
            " extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::float8"
        )
        is_standby, age_seconds = cursor.fetchone()
    if not is_standby:
        raise OperationalError("it does not follow a primary")
    if age_seconds is None or age_seconds > LIMIT_SECONDS:
        raise OperationalError(f"it is more than {LIMIT_SECONDS:g} s behind")
