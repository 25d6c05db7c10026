"""Read a whole table as CSV, in id order, from one snapshot."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Sequence

from django.db import connections, transaction

from retention.partitions.locks import OWNER_DATABASE


@contextlib.contextmanager
def snapshot() -> Iterator[None]:
    """Open a read-only transaction with one snapshot. Inside another transaction, do nothing."""
    if connections[OWNER_DATABASE].in_atomic_block:  # a restore compares before it commits
        yield
        return
    with transaction.atomic(using=OWNER_DATABASE), connections[OWNER_DATABASE].cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
        yield


def columns_of(*, table: str, using: str) -> list[list[str]]:
    """List the columns of a table as [name, type], in their order."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            [connections[using].ops.quote_name(table)],
        )
        return [list(column) for column in cursor.fetchall()]


def extent(*, table: str) -> tuple[int, str | None, str | None]:
    """Return the number of rows, the first id and the last."""
    name = connections[OWNER_DATABASE].ops.quote_name(table)
    ends = [f"(SELECT id FROM {name} ORDER BY id {way} LIMIT 1)" for way in ("ASC", "DESC")]  # noqa: S608
    with connections[OWNER_DATABASE].cursor() as cursor:
        cursor.execute(f"SELECT (SELECT count(*) FROM {name}), {ends[0]}, {ends[1]}")  # noqa: S608
        rows, first, last = cursor.fetchone()
        return rows, *((str(id) if isinstance(id, uuid.UUID) else None) for id in (first, last))


def copy_out(*, table: str, columns: Sequence[Sequence[str]]) -> Iterator[bytes]:
    """Yield the table as CSV with a header, in chunks. The caller holds a transaction."""
    quote = connections[OWNER_DATABASE].ops.quote_name
    names = ", ".join(quote(column) for column, _ in columns)
    with connections[OWNER_DATABASE].cursor() as cursor:
        # The text of a time depends on these settings.
        cursor.execute("SELECT set_config('datestyle', 'ISO', true), set_config('timezone', 'UTC', true)")
        select = f"SELECT {names} FROM {quote(table)} ORDER BY id"  # noqa: S608
        with cursor.copy(f"COPY ({select}) TO STDOUT (FORMAT csv, HEADER)") as copy:
            for data in copy:
                yield bytes(data)
