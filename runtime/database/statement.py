"""Build one SQL statement that changes a row and inserts the rows that follow from the change.

`execute` joins parts into one `WITH`: an optional guard, then an optional change, then the inserts. The
change takes its rows from the guard. Each insert takes them from the change, or from the guard if the change
is missing. If one of these has no row, nothing is written. Outside a transaction, the statement is its own
transaction, which saves the round trips of BEGIN and COMMIT, and one for each table.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import connection

from runtime.database.postgres.cursor import Prepared
from runtime.database.transactions import after_commit


@dataclasses.dataclass(frozen=True, slots=True)
class StatementPart:
    """SQL that reads or writes one row for each row of the part that it depends on.

    Each of `steps` has one column, and `{source}` in place of its FROM clause. A step takes its rows from the
    step before. `values` are the parameters of all steps. `on_commit` is called after the commit if the last
    step had a row.
    """

    steps: tuple[str, ...]
    values: Sequence[Any]
    on_commit: Callable[[], None] | None = None


#: What the last step of a change returns.
ROW_VERSION = "xmin::text AS row_version"


class Written(NamedTuple):
    """Which parts of a statement had a row.

    `has_guard` is True without a guard. Without a change, `has_change` says whether the guard had a row. If
    `has_change`, the inserts were written. `row_version` is the `xmin` of the row that the change wrote.
    """

    has_guard: bool
    has_change: bool
    row_version: str | None = None


def execute(
    *,
    guard: StatementPart | None = None,
    change: StatementPart | None = None,
    inserts: Sequence[StatementPart],
) -> Written:
    """Run the parts as one statement. After the commit, call `on_commit` of those that had a row.

    The last step of `change` returns the column `ROW_VERSION`.
    """
    chain = [part for part in (guard, change) if part is not None]
    parts = [*chain, *inserts]
    text = _text(
        tuple(part.steps for part in chain), tuple(part.steps for part in inserts), change is not None
    )
    with connection.cursor() as cursor:
        cursor.execute(text, [value for part in parts for value in part.values])
        row_version, *counts = cursor.fetchone()
    had_row = [count > 0 for count in counts]
    for part, written in zip(parts, had_row, strict=True):
        if written and part.on_commit is not None:
            after_commit(part.on_commit)
    return Written(
        has_guard=guard is None or had_row[0],
        has_change=not chain or had_row[len(chain) - 1],
        row_version=row_version,
    )


@functools.lru_cache(maxsize=256)
def _text(
    chain: tuple[tuple[str, ...], ...], inserts: tuple[tuple[str, ...], ...], has_change: bool
) -> Prepared:
    """Return the statement. Few exist, because they differ in their parts but not in their values."""
    parts: list[str] = []
    results: list[str] = []

    def add(steps: tuple[str, ...], source: str) -> str:
        for step in steps:
            parts.append(f"p{len(parts)} AS MATERIALIZED ({step.replace('{source}', source)})")
            source = f"FROM p{len(parts) - 1}"
        return source

    source = ""
    for steps in chain:
        source = add(steps, source)
        results.append(source)
    version = f"(SELECT row_version {source})" if has_change else "NULL"
    results += [add(steps, source) for steps in inserts]
    counts = ", ".join(f"(SELECT count(*) {result})" for result in results)
    return Prepared(f"WITH {', '.join(parts)} SELECT {version}, {counts}")


#: Columns that have the same value in every row, with that value in SQL.
Fixed = tuple[tuple[str, str], ...]


def insert(
    table: str,
    values: Mapping[str, object],
    *,
    fixed: Fixed = (),
    returning: str = "1",
    on_commit: Callable[[], None] | None = None,
) -> StatementPart:
    """Return the insert of a row, with a value for each column.

    `fixed` values need no parameters, because psycopg parses a statement with more than 50 parameters again
    at each use, which takes 0.1 ms.
    """
    step = _insert_text(table, tuple(values), fixed, returning)
    return StatementPart((step,), [parameter(value) for value in values.values()], on_commit)


_AS_TEXT: dict[type, Callable[[Any], str]] = {str: str, int: str, list: json.dumps, dict: json.dumps}


def parameter(value: object) -> object:
    """Return a column's value as a parameter: lists and dicts as JSON, numbers as text.

    psycopg would choose an int's type by its size, and each type would need another prepared statement.
    """
    if (as_text := _AS_TEXT.get(type(value))) is not None:
        return as_text(value)
    return str(value) if isinstance(value, str) else value  # a member of TextChoices


@functools.lru_cache(maxsize=256)
def _insert_text(table: str, columns: tuple[str, ...], fixed: Fixed, returning: str) -> str:
    names = ", ".join([*columns, *(name for name, _ in fixed)])
    values = ", ".join([*("%s" for _ in columns), *(value for _, value in fixed)])
    return f"INSERT INTO {table} ({names}) SELECT {values} {{source}} RETURNING {returning}"
