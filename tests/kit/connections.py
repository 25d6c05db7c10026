"""Another connection to the test's database, perhaps through a proxy or a pooler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection, connections

from tests.kit.waiting import PATIENCE
from tests.kit.words import DatabaseWrapper

#: The alias of the other connection, and the seconds of a `hasty` one for each statement.
OTHER, DEADLINE = "other", 0.5


@contextmanager
def wrapper(
    *, host: str = "", port: int | str = "", deadline: float | None = PATIENCE, **options: Any
) -> Iterator[DatabaseWrapper]:
    """Open a connection, perhaps through a proxy or to one of several servers."""
    default: dict[str, Any] = connection.settings_dict
    address = {"HOST": host or default["HOST"], "PORT": port or default["PORT"]}
    options = {**default["OPTIONS"], "deadline": deadline, "connect_timeout": int(PATIENCE)} | options
    other = DatabaseWrapper({**default, **address, "OPTIONS": options}, alias=OTHER)
    connections[OTHER] = other
    try:
        yield other
    finally:
        other.close()
        del connections[OTHER]


def make_hasty(database: DatabaseWrapper) -> None:
    """Give up on the open connection after `DEADLINE`, but not on the next one: a machine may be busy."""
    database.ensure_connection()
    database.connection.deadline_seconds = DEADLINE


def database_port() -> int:
    return int(connection.settings_dict["PORT"])


def ask(database: Any, sql: str = "SELECT 42", parameters: Any = None) -> Any:
    with database.cursor() as cursor:
        cursor.execute(sql, parameters)
        return (cursor.fetchone() or [None])[0] if cursor.description else None
