"""Find out whether a pooler lends one session of the server to many clients, a transaction at a time.

pgbouncer does so with `pool_mode = transaction`. What belongs to a session does not work there: advisory
locks, prepared statements, `SET`, and cursors that outlive their transaction.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import psycopg
from django.core.exceptions import ImproperlyConfigured

#: In each of them another client may take the session that the proof waits for.
ROUNDS = 5
MARK = "orderpost.session"


class SharedSession(ImproperlyConfigured):
    """The URL of a setting must lead to sessions of one's own, and leads to shared ones."""

    def __init__(self, *, setting: str, why: str) -> None:
        super().__init__(
            f"{setting} leads to a pooler that shares sessions between transactions (pgbouncer's pool_mode ="
            f" transaction). {why} Set {setting} to the address of PostgreSQL itself."
        )


def has_shared_sessions(
    connection: psycopg.Connection[Any], *, connect: Callable[[], psycopg.Connection[Any]]
) -> bool | None:
    """Tell whether other clients use the sessions of this connection, which is in autocommit.

    True is proven: a second connection, by `connect`, has read what the first wrote into its session, or the
    first does not find it any more. Neither happens where each client has a session of its own. None: it
    could not be tried.
    """
    mark = secrets.token_hex(8)

    def read(session: psycopg.Connection[Any]) -> Any:
        return session.execute("SELECT current_setting(%s, true)", [MARK], prepare=False).fetchone()

    try:
        with connect() as other:
            for _ in range(ROUNDS):
                connection.execute("SELECT set_config(%s, %s, false)", [MARK, mark], prepare=False)
                # A transaction begins, and keeps its session from the first connection: perhaps the only one.
                if read(other) == (mark,) or read(connection) != (mark,):
                    return True
                other.rollback()
    except psycopg.Error:
        return None
    return False
