"""Find out whether a pooler shares one session of the server between clients, a transaction at a time.

pgbouncer does so with `pool_mode = transaction`. Then nothing works that belongs to a session: advisory
locks, prepared statements, `SET`, and cursors that outlive their transaction.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import psycopg
from django.core.exceptions import ImproperlyConfigured

#: How often to try, because in each round another client may take the session that would prove it.
ROUNDS = 5
MARK = "orderpost.session"


class SharedSession(ImproperlyConfigured):
    """The URL of a setting leads to shared sessions, but must not."""

    def __init__(self, *, setting: str, why: str) -> None:
        super().__init__(
            f"{setting} leads to a pooler that shares sessions between transactions (pgbouncer's pool_mode ="
            f" transaction). {why} Set {setting} to the address of PostgreSQL itself."
        )


def has_shared_sessions(
    connection: psycopg.Connection[Any], *, connect: Callable[[], psycopg.Connection[Any]]
) -> bool | None:
    """Return whether other clients use the sessions of this connection, which is in autocommit.

    True is proven: a second connection, made by `connect`, has read the mark that the first wrote into its
    session, or the first does not find the mark any more. Neither happens if each client has its own session.
    Return None if the test failed.
    """
    mark = secrets.token_hex(8)

    def read(session: psycopg.Connection[Any]) -> Any:
        return session.execute("SELECT current_setting(%s, true)", [MARK], prepare=False).fetchone()

    try:
        with connect() as other:
            for _ in range(ROUNDS):
                connection.execute("SELECT set_config(%s, %s, false)", [MARK, mark], prepare=False)
                # This begins a transaction, which keeps its session, perhaps the only one, from `connection`.
                if read(other) == (mark,) or read(connection) != (mark,):
                    return True
                other.rollback()
    except psycopg.Error:
        return None
    return False
