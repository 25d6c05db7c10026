"""Trips to PostgreSQL: how often a process waits for it to be ready for the next query."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.db import connection


def count_trips(work: Callable[[], object], *, database: Any = connection) -> int:
    """Return the trips of some work, whose connection must be open, as libpq traces them."""
    with tempfile.NamedTemporaryFile() as file:
        database.connection.pgconn.trace(file.fileno())
        try:
            work()
        finally:
            database.connection.pgconn.untrace()
        return Path(file.name).read_text().count("ReadyForQuery")
