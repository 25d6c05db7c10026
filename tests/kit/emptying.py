"""Empty the tables that a transactional test wrote to, instead of every table of the database.

Django truncates all tables after each transactional test and creates the rows of `migrate` again: content
types, permissions, groups. Instead, one query of the catalogue finds the tables whose files have pages. A
table without pages has no rows, so this needs no statistics. Django's full flush still follows the first
test, and each test that changed the rows of `migrate` or detached a partition.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from django.db import connection, transaction
from django.test import TransactionTestCase

#: The tables and partitions, and whether they have pages.
TABLES = """
    SELECT child.relname, pg_relation_size(child.oid) > 0, parent.inhparent IS NOT NULL
    FROM pg_class child LEFT JOIN pg_inherits parent ON parent.inhrelid = child.oid
    WHERE child.relkind = 'r' AND child.relnamespace = 'public'::regnamespace
        AND coalesce(parent.inhparent::regclass::text, child.relname) = ANY(%s)
"""
#: A table can only be truncated together with the tables that refer to it.
REFERRING = """
    WITH RECURSIVE chosen(id) AS (
        SELECT unnest(%s::text[])::regclass::oid
        UNION SELECT conrelid FROM pg_constraint JOIN chosen ON confrelid = id WHERE contype = 'f'
    ) SELECT relname FROM pg_class JOIN chosen ON oid = id WHERE relkind = 'r'
"""


@dataclasses.dataclass
class State:
    """The database after a full flush."""

    partitions: set[str]
    #: A checksum of the rows of each table with rows.
    sums: dict[str, str]


class Emptying:
    """Replace `TransactionTestCase._fixture_teardown`. `full` is that method."""

    def __init__(self, full: Callable[[TransactionTestCase], None]) -> None:
        self.full = full
        self.clean: State | None = None

    def __call__(self, case: TransactionTestCase) -> None:
        if self.clean is None or not self._empty(self.clean):
            self.full(case)
            self.clean = self._state()

    def _empty(self, clean: State) -> bool:
        """Truncate tables with pages, except those of `migrate`. Return whether the result is `clean`."""
        with transaction.atomic():
            written, partitions = self._tables()
            if not partitions >= clean.partitions or _sums(clean.sums) != clean.sums:
                return False
            if dirty := written - set(clean.sums):
                chosen = {name for (name,) in _rows(REFERRING, [sorted(dirty)])}
                if chosen & set(clean.sums):
                    return False
                names = ", ".join(connection.ops.quote_name(name) for name in sorted(chosen))
                _execute(f"TRUNCATE {names}")
        return True

    def _state(self) -> State:
        written, partitions = self._tables()
        sums = _sums(written)
        return State(partitions=partitions, sums={name: value for name, value in sums.items() if value})

    def _tables(self) -> tuple[set[str], set[str]]:
        """Return the names of the tables with pages, and of all partitions."""
        rows = _rows(TABLES, [connection.introspection.django_table_names()])
        return {name for name, pages, _ in rows if pages}, {name for name, _, part in rows if part}


def _sums(names: Any) -> dict[str, str]:
    if not names:
        return {}
    of_table = "SELECT '{0}', md5(string_agg(t::text, ' ' ORDER BY t::text)) FROM {0} t"
    return dict(_rows(" UNION ALL ".join(of_table.format(name) for name in sorted(names)), []))


def _rows(sql: str, parameters: list[Any]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return list(cursor.fetchall())


def _execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)
