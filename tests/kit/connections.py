"""Another connection to the test's database, perhaps through a proxy or a pooler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection, connections

from tests.kit.words import DatabaseWrapper

#: The alias of the other connection, and its seconds for each statement.
OTHER, DEADLINE = "other", 0.5


@contextmanager
def wrapper(*, port: int | None = None, deadline: float | None = DEADLINE) -> Iterator[DatabaseWrapper]:
    """Open a connection, perhaps through a proxy."""
    given: dict[str, Any] = connection.settings_dict
    options = {**given["OPTIONS"], "deadline": deadline, "connect_timeout": 2}
    other = DatabaseWrapper({**given, "PORT": port or given["PORT"], "OPTIONS": options}, alias=OTHER)
    connections[OTHER] = other
    try:
        yield other
    finally:
        other.close()
        del connections[OTHER]


def database_port() -> int:
    return int(connection.settings_dict["PORT"])


def ask(database: DatabaseWrapper, sql: str = "SELECT 42", parameters: Any = None) -> Any:
    with database.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchone()[0] if cursor.description else None
