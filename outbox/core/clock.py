"""The database's clock: everything that is stored or compared in a table uses it."""

from __future__ import annotations

import datetime as dt

from django.db import connections


def database_now(*, using: str = "default") -> dt.datetime:
    """This function will read the database's clock."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        now: dt.datetime = cursor.fetchone()[0]
        return now
