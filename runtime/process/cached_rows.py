"""Keep small tables that people edit, such as mail profiles, in the memory of each process.

A request then reads them without a statement. `keep_fresh` calls `refresh` every few seconds, which reads the
versions of all tables in one statement and loads those that changed. Each process sees a change within 10
seconds. While the database is away, the values stay.

To add a table, make a `CachedRows` in a module that every process imports, and read it with `get`. Its
`version` is SQL of one text that changes with each change of what `load` returns, such as `version_of`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import structlog
from django.db import DatabaseError, InterfaceError, connection

from runtime.process.outage import Outage

log = structlog.get_logger(__name__)

REFRESH_SECONDS = 5.0
Value = TypeVar("Value")
#: The cached tables of all apps, which `refresh` loads.
CACHED: list[CachedRows[Any]] = []
_starting = threading.Lock()
_started = False


class CachedRows(Generic[Value]):
    """The rows of a table by their keys, as `load` makes them. Never change the mapping.

    `load` is called without arguments, in any thread, and must not raise an error for a bad row. `value` is
    None before the first load.
    """

    def __init__(self, *, version: str, load: Callable[[], Mapping[str, Value]]) -> None:
        self.version, self.load = version, load
        self.value: Mapping[str, Value] | None = None
        self.loaded_version: str | None = None
        CACHED.append(self)

    def get(self) -> Mapping[str, Value]:
        """Return the rows. The first call of a process reads them."""
        if self.value is None:
            refresh()
        assert self.value is not None
        return self.value


def load() -> None:
    """Read the tables that this process has not read yet. Call this before a transaction that needs them."""
    if any(rows.value is None for rows in CACHED):
        refresh()


def version_of(table: str, *, where: str = "true") -> str:
    """Return SQL of a text that changes with each committed change of a small table's rows."""
    return f"(SELECT md5(string_agg(xmin::text, ',' ORDER BY id)) FROM {table} WHERE {where})"  # noqa: S608


def refresh() -> None:
    """Load the rows whose version changed. On an error keep the values. Raise the database's errors."""
    cached = list(CACHED)  # a module that another thread imports meanwhile adds its own
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {', '.join(rows.version for rows in cached)}")  # only the apps' own SQL
        versions = cursor.fetchone()
    for rows, version in zip(cached, versions, strict=True):
        if rows.value is not None and rows.loaded_version == version:
            continue
        try:
            # A change after the first statement is loaded now, and once more at the next refresh.
            rows.value, rows.loaded_version = rows.load(), version
        except (DatabaseError, InterfaceError):
            raise
        except Exception:
            if rows.value is None:
                raise
            log.exception("cached rows stay: they cannot be loaded")


def keep_fresh() -> None:
    """Call `refresh` every `REFRESH_SECONDS` in a thread until the process exits. Call this after a fork."""
    global _started
    with _starting:  # the roles of one process begin at the same time
        if _started:
            return
        _started = True
    threading.Thread(target=_run, name="cached rows", daemon=True).start()


def _run() -> None:
    outage = Outage(log)
    while True:
        try:
            refresh()
            outage.end()
        except (DatabaseError, InterfaceError) as error:
            # If there are no rows yet, the process waits for PostgreSQL, and says so itself.
            if any(rows.value is not None for rows in CACHED):
                outage.warn("cached rows stay: the database does not answer", error)
            connection.close()
        time.sleep(REFRESH_SECONDS)
