"""The database's clock. Use it for every time that is stored in a table or compared with such a time."""

from __future__ import annotations

import datetime as dt

from django.db import connections


def read_database_time(*, using: str = "default") -> dt.datetime:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        now: dt.datetime = cursor.fetchone()[0]
        return now
