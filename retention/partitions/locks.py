"""Allow one run at a time for each partitioned table, and limit the waits for PostgreSQL's locks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from django.conf import settings
from django.db import connections, transaction
from django.db.backends.utils import CursorWrapper
from django.db.models import Model

Report = Callable[..., None]  # report(step, **facts) is called after each step

#: The direct connection of the tables' owner, which changes partitions.
OWNER_DATABASE = "owner"
LOCK_TIMEOUT = "5s"
_LOCK = "exclusive:"


class AlreadyRunning(RuntimeError):
    """Another run holds the lock of the same table."""


@contextlib.contextmanager
def exclusive_lock(*, model: type[Model], using: str = OWNER_DATABASE) -> Iterator[None]:
    """Prevent other runs on the same table.

    The advisory lock belongs to the session, and PostgreSQL frees it when the process dies. Raise
    `AlreadyRunning` if another run holds it.
    """
    key = f"{_LOCK}{model._meta.db_table}"
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(hashtext(%s))", [key])
        if not cursor.fetchone()[0]:
            raise AlreadyRunning(
                f"another run changes {model._meta.db_table}; try again after it has finished"
            )
    try:
        yield
    finally:
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(hashtext(%s))", [key])


@contextlib.contextmanager
def short_lock_timeout() -> Iterator[CursorWrapper]:
    """Open a cursor in autocommit that waits at most `LOCK_TIMEOUT` for each lock."""
    with connections[OWNER_DATABASE].cursor() as cursor:
        cursor.execute("SELECT set_config('lock_timeout', %s, false)", [LOCK_TIMEOUT])
        try:
            yield cursor
        finally:
            if not connections[OWNER_DATABASE].connection.closed:
                cursor.execute("RESET lock_timeout")


@contextlib.contextmanager
def no_statement_timeout(*, using: str) -> Iterator[CursorWrapper]:
    """Open a transaction without the role's statement timeout.

    The client still gives up on a statement after DATABASE_MAINTENANCE_TIMEOUT.
    """
    with transaction.atomic(using=using), connections[using].cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = 0")
        with connections[using].connection.waiting(seconds=settings.DATABASE_MAINTENANCE_TIMEOUT):
            yield cursor
