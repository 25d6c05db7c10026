"""Lock a row, and save model instances together, in the caller's transaction.

A change writes the order, its events, its e-mails and the stored answer in one statement, which travels with
COMMIT: a statement costs the process more than the rows in it, and a trip as much. The writes do not depend
on each other, since the caller has locked the row on which it decided. A constraint that one of them violates
undoes all.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import operator
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from django.db import DEFAULT_DB_ALIAS, IntegrityError, OperationalError, connection, connections, models
from django.db.models.expressions import DatabaseDefault
from psycopg import errors

from runtime.database.postgres.cursor import Prepared
from runtime.database.transactions import require_transaction

Row = TypeVar("Row", bound=models.Model)

#: How many threads of a process may wait for one row. A further one waits for its turn this long, which
#: leaves the process's other slots to requests for other rows.
MOST_WAITING, TURN_SECONDS = 2, 0.25
#: Where an instance keeps the values with which it was locked.
_LOADED = "_values_when_locked"


def lock_row(model: type[Row], id: uuid.UUID) -> tuple[Row | None, dt.datetime]:
    """Lock a row until the transaction ends. Return it and the database's time. The row is None if missing.

    The time is read after the wait for the lock. Read rows of other tables in later statements: a join would
    show them as they were before the wait. Raise `OperationalError` (see `is_lock_timeout`) after the role's
    `lock_timeout`, or if enough threads of this process wait for the row already.
    """
    row, now, _ = lock_row_and_ask(model, id)
    return row, now


def lock_row_and_ask(
    model: type[Row], id: uuid.UUID, *, also_select: str = "NULL", values: Sequence[Any] = ()
) -> tuple[Row | None, dt.datetime, Any]:
    """Lock a row as `lock_row` does, and return a third value: that of `also_select`.

    This is an expression in SQL about other rows, with the parameters `values`, from before the wait.
    """
    require_transaction(f"a lock of {model._meta.db_table}")
    columns = _columns(model)
    held = _held()
    if held is not None and held.is_of(model, id) and held.row is not None:
        with connection.cursor() as cursor:
            cursor.execute(_ask(also_select), values)
            now, answer = cursor.fetchone()
        return cast("Row", held.row), now, answer
    with _waiting(id), connection.cursor() as cursor:
        cursor.execute(_lock(columns, also_select), [*values, id])
        now, answer, exists, *row = cursor.fetchone()
    if exists is None:
        return None, now, answer
    for index in columns.json:
        row[index] = json.loads(row[index])
    instance = model.from_db("default", columns.names, row)
    instance.__dict__[_LOADED] = columns.get(instance)
    if held is not None and held.is_of(model, id):
        held.row = instance
    return instance, now, answer


def save_together(*instances: models.Model, check: str = "", values: Sequence[object] = ()) -> None:
    """Insert the new instances, and write the changed columns of the locked ones, in one statement.

    It is sent with COMMIT when the block ends, which raises its errors, or before the block's next statement.
    All instances that were saved since the last statement are in it. `check` is a condition in SQL with the
    parameters `values`: if it does not hold, all fails (see `has_failed_check`). Columns that the database
    fills are not read back.
    """
    require_transaction("a save")
    held = _held()
    now = [instance for instance in instances if held is None or instance is not held.row]
    writes = [(row, *made) for row in now if (made := _statement(row)) is not None]
    if not writes and not check:
        return
    database: Any = connections[DEFAULT_DB_ALIAS]
    if database.needs_rollback:
        database.validate_no_broken_transaction()  # raises Django's error
    if database.unsent is not None and not database.unsent.takes([row for row, *_ in writes]):
        database.send_unsent()
    if database.unsent is None:
        database.unsent = _Writes()
    database.unsent.add(writes, check, values)
    if held is not None and held.row is None:
        held.keep_new(instances)


#: More writes than these are not joined: each number of them is a statement of its own, with its own plan.
MOST_JOINED = 16
#: What a failed check is, as text. PostgreSQL cannot read it as a boolean, which fails the statement.
_FAILED_CHECK = "a check of save_together failed"


class _Writes:
    """The writes of a block since its last statement."""

    def __init__(self) -> None:
        self.rows: list[models.Model] = []
        self.texts: list[str] = []
        self.parameters: list[object] = []
        self.checks: list[str] = []
        self.check_values: list[object] = []

    def takes(self, rows: Sequence[models.Model]) -> bool:
        """Return whether these can join. Of two writes of one row in a statement, one would be lost."""
        is_twice = any(row is other for row in rows for other in self.rows)
        return not is_twice and len(self.rows) + len(rows) <= MOST_JOINED

    def add(
        self, writes: Sequence[tuple[models.Model, str, list[object]]], check: str, values: Sequence[object]
    ) -> None:
        for row, text, parameters in writes:
            self.rows.append(row)
            self.texts.append(text)
            self.parameters += parameters
        if check:
            self.checks.append(f"({check})")
            self.check_values += values

    def statement(self) -> tuple[Prepared, list[object]]:
        text = _joined(tuple(self.texts), " AND ".join(self.checks))
        return text, self.parameters + self.check_values


def has_failed_check(error: BaseException) -> bool:
    """Return whether the `check` of a `save_together` did not hold."""
    return isinstance(error.__cause__, errors.InvalidTextRepresentation) and _FAILED_CHECK in str(error)


class HeldRow:
    """A row that is written at the end of the block of `write_once`. `row` is None while it is missing."""

    def __init__(self, model: type[models.Model], id: uuid.UUID) -> None:
        self.model, self.id = model, id
        self.row: models.Model | None = None

    def is_of(self, model: type[models.Model], id: uuid.UUID) -> bool:
        return self.model is model and self.id == id

    def keep_new(self, instances: Sequence[models.Model]) -> None:
        """Keep the row if it is one of those that were inserted."""
        for instance in instances:
            if self.is_of(type(instance), instance.pk):
                self.row = instance
                instance._state.adding = False
                instance.__dict__[_LOADED] = _columns(self.model).get(instance)


@contextmanager
def write_once(model: type[Row], id: uuid.UUID) -> Iterator[HeldRow]:
    """Lock a row once for all changes of the block, and write it once at the end.

    Several changes of one transaction would each leave a version of the row, over which every later statement
    and every unique index must walk until the commit: their time grows with the square of their number. In
    the block, `lock_row` returns the same instance again, and `save_together` inserts it but does not update
    it. After an error nothing is written.
    """
    require_transaction(f"a lock of {model._meta.db_table}")
    held = HeldRow(model, id)
    _work.held = held
    try:
        yield held
    finally:
        _work.held = None
    if held.row is not None:
        save_together(held.row)


_work = threading.local()


def _held() -> HeldRow | None:
    held: HeldRow | None = getattr(_work, "held", None)
    return held


def broken_constraint(error: IntegrityError) -> str | None:
    """Return the name of the constraint that a statement violated."""
    name: str | None = getattr(getattr(error.__cause__, "diag", None), "constraint_name", None)
    return name


_turns = threading.Condition()
_waiters: Counter[uuid.UUID] = Counter()


@contextmanager
def _waiting(id: uuid.UUID) -> Iterator[None]:
    """Count the threads that wait for a row."""
    with _turns:
        if not _turns.wait_for(lambda: _waiters[id] < MOST_WAITING, TURN_SECONDS):
            text = f"{MOST_WAITING} threads of this process already wait for this row"
            raise OperationalError(text) from errors.LockNotAvailable()
        _waiters[id] += 1
    try:
        yield
    finally:
        with _turns:
            _waiters[id] -= 1
            if not _waiters[id]:
                del _waiters[id]
            _turns.notify_all()


class _Columns:
    """The parts of the SQL about a model, made once for each model."""

    def __init__(self, model: type[models.Model]) -> None:
        fields = model._meta.local_concrete_fields
        self.table = model._meta.db_table
        self.names = [field.attname for field in fields]
        self.get: Callable[[models.Model], tuple[Any, ...]] = operator.attrgetter(*self.names)
        self.json = [index for index, field in enumerate(fields) if isinstance(field, models.JSONField)]
        #: The defaults that an INSERT has as literals: numbers, words, and empty JSON.
        self.literals = [_literal(field) for field in fields]


@functools.cache
def _columns(model: type[models.Model]) -> _Columns:
    return _Columns(model)


@functools.cache
def _lock(columns: _Columns, also_select: str) -> Prepared:
    # The clock is outside of the subquery, and is read after the lock was taken.
    names = ", ".join(f"locked.{name}" for name in columns.names)
    return Prepared(
        f"""
        SELECT clock_timestamp(), {also_select}, locked.id, {names} FROM (VALUES (1)) AS always
        LEFT JOIN (SELECT * FROM {columns.table} WHERE id = %s FOR UPDATE) AS locked ON true
        """  # noqa: S608 - names of a model's columns, and our own questions
    )


@functools.cache
def _ask(also_select: str) -> Prepared:
    return Prepared(f"SELECT clock_timestamp(), {also_select}")


def _literal(field: models.Field[Any, Any]) -> tuple[object, str] | None:
    """Return a field's default with its literal, or None."""
    default = field.get_default() if field.has_default() and not callable(field.default) else None
    if field.has_default() and field.default in (list, dict):
        default = field.default()
        return default, f"'{json.dumps(default)}'"
    if isinstance(default, str) and default.isidentifier():
        return default, f"'{default}'"
    return (default, str(default)) if type(default) is int else None


def _statement(instance: models.Model) -> tuple[str, list[object]] | None:
    """Return the INSERT or UPDATE of an instance and its parameters, or None if nothing has changed."""
    columns = _columns(type(instance))
    now = columns.get(instance)
    before = instance.__dict__.get(_LOADED)
    if before is None:
        return _insert(columns, now)
    changed = [index for index, value in enumerate(now) if value != before[index]]
    if not changed:
        return None
    text = _update(columns, tuple(changed))
    return text, [*(parameter(now[index]) for index in changed), instance.pk]


def _insert(columns: _Columns, row: tuple[Any, ...]) -> tuple[str, list[object]]:
    """Leave out NULLs and defaults of the database. Numbers and empty JSON that are defaults are literals.

    psycopg parses a statement with more than 50 parameters again at each use, which takes 0.1 ms.
    """
    terms, parameters = [], []
    for value, literal in zip(row, columns.literals, strict=True):
        if value is None or isinstance(value, DatabaseDefault):
            terms.append("")
        elif literal is not None and value == literal[0]:
            terms.append(literal[1])
        else:
            terms.append("%s")
            parameters.append(parameter(value))
    return _insert_text(columns, tuple(terms)), parameters


@functools.lru_cache(maxsize=256)
def _insert_text(columns: _Columns, terms: tuple[str, ...]) -> str:
    written = [(name, term) for name, term in zip(columns.names, terms, strict=True) if term]
    names, values = zip(*written, strict=True)
    return f"INSERT INTO {columns.table} ({', '.join(names)}) VALUES ({', '.join(values)})"  # noqa: S608


@functools.lru_cache(maxsize=256)
def _update(columns: _Columns, changed: tuple[int, ...]) -> str:
    names = ", ".join(f"{columns.names[index]} = %s" for index in changed)
    return f"UPDATE {columns.table} SET {names} WHERE id = %s"  # noqa: S608 - names of a model's columns


@functools.lru_cache(maxsize=256)
def _joined(texts: tuple[str, ...], check: str) -> Prepared:
    """Return one statement of several.

    Its SELECT asks for each write in turn. PostgreSQL would otherwise choose their order, and two events of
    one order must get their positions in the order of its versions.
    """
    names = [f"write{number}" for number in range(len(texts))]
    writes = ", ".join(f"{name} AS ({text} RETURNING 1)" for name, text in zip(names, texts, strict=True))
    if check:
        check = f"(CASE WHEN {check} THEN 'true' ELSE '{_FAILED_CHECK}' END)::boolean"
    results = ", ".join([check or "true", *(f"EXISTS (SELECT FROM {name})" for name in names)])
    return Prepared(f"WITH {writes} SELECT {results}" if writes else f"SELECT {results}")


_AS_TEXT: dict[type, Callable[[Any], str]] = {str: str, int: str, list: json.dumps, dict: json.dumps}


def parameter(value: object) -> object:
    """Return a column's value as a parameter: lists and dicts as JSON, numbers as text.

    psycopg would choose an int's type by its size, and each type would need another prepared statement.
    """
    if (as_text := _AS_TEXT.get(type(value))) is not None:
        return as_text(value)
    return str(value) if isinstance(value, str) else value  # a member of TextChoices
