"""The database's clock, for every time that is stored in a table or compared with one."""

from __future__ import annotations

import datetime as dt

from django.db import connections


def database_now(*, using: str = "default") -> dt.datetime:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        now: dt.datetime = cursor.fetchone()[0]
        return now
