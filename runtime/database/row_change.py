"""Change a row that is not locked while its change is decided: read, decide, write with a guard."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple, TypeVar

from django.db import IntegrityError, connection, transaction

from runtime.database.postgres.cursor import Prepared

T = TypeVar("T")


class JoinedRead(NamedTuple):
    """Rows that a statement reads next to its own. `make` turns the database's time and `columns` into them.

    `joins` are LEFT JOINs whose parameters are `values`, so that they neither remove nor repeat a row.
    """

    columns: str
    joins: str
    values: Sequence[Any]
    make: Callable[[dt.datetime, Sequence[Any]], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class RowToRead:
    """A row on which a change is decided.

    `columns` are in SQL, each with the table's name. `make` turns the database's time and their values into
    the argument of the decision. It must contain the row's `xmin`, so that the change can be guarded by it.
    """

    table: str
    columns: str
    make: Callable[[dt.datetime, Sequence[Any]], Any]

    @property
    def primary_key(self) -> str:
        """The name of the constraint that the insert of a second row with the same id violates."""
        return f"{self.table}_pkey"

    def read(self, id: uuid.UUID, *, lock: bool = False) -> Any:
        """Return the row, or None without one. With `lock`, lock it until the transaction ends."""
        with connection.cursor() as cursor:
            cursor.execute(_read_text(self, lock), [id])
            found = cursor.fetchone()
        return None if found is None else self.make(found[0], found[1:])

    def joined(self, id: uuid.UUID | None) -> JoinedRead:
        """Return the read of the row for a statement that joins it. It makes None without a row."""
        return JoinedRead(self.columns_if_found, _join_text(self), [id], self.make_if_found)

    @property
    def columns_if_found(self) -> str:
        """The columns for a LEFT JOIN. The first says if there is a row."""
        return _columns_if_found(self)

    def make_if_found(self, now: dt.datetime, found: Sequence[Any]) -> Any:
        """Return the row of `columns_if_found`, or None without one."""
        return self.make(now, found[1:]) if found[0] else None


@functools.cache
def _columns_if_found(row: RowToRead) -> str:
    return f"{row.table}.id IS NOT NULL, {row.columns}"


@functools.cache
def _join_text(row: RowToRead) -> str:
    return f"LEFT JOIN {row.table} ON {row.table}.id = %s"


@functools.cache
def _read_text(row: RowToRead, lock: bool) -> Prepared:
    # All of it is written in the code, so nothing can be injected.
    return Prepared(
        f"SELECT statement_timestamp(), {row.columns} FROM {row.table}"  # noqa: S608
        f" WHERE {row.table}.id = %s{' FOR UPDATE' if lock else ''}"
    )


def change_row(
    attempt: Callable[[int], T | None], *, lock: Callable[[], object], conflicts: Collection[str] = ()
) -> T:
    """Return the first result of `attempt` that is not None. `attempt` gets its number, from 1 to 3.

    An attempt reads, decides, and writes with a guard. It returns None if another session changed the row
    after it was read, so that nothing was written. The insert of a row that violates one of the constraints
    `conflicts` counts as such, too. The third attempt is a transaction that calls `lock` first, so that no
    other change can come between. Raise what `attempt` raises.
    """
    for number in (1, 2, 3):
        last = number == 3
        try:
            with transaction.atomic(durable=True) if last else contextlib.nullcontext():
                if last:
                    lock()
                result = attempt(number)
        except IntegrityError as error:
            if last or broken_constraint(error) not in conflicts:
                raise
            result = None
        if result is not None:
            return result
    raise RuntimeError("a locked row was changed by another session")


def broken_constraint(error: IntegrityError) -> str | None:
    """Return the name of the constraint that a statement violated."""
    name: str | None = getattr(getattr(error.__cause__, "diag", None), "constraint_name", None)
    return name
