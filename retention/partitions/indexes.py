"""Build an index while others write.

PostgreSQL cannot do so for a partitioned table. Its index is made on the parent only, then built on each
partition by itself, and attached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import structlog
from django.db import connections

from runtime.database import indexes

log = structlog.get_logger(__name__)

#: How long a statement waits for a lock that writers want, too. Writers queue behind it, which is why it must
#: be short.
LOCK_TIMEOUT = "3s"

Execute = Callable[[str], object]


def build_missing(*, using: str) -> Iterator[str]:
    """Build each index of ours that is missing or invalid, on any table, and yield its name.

    Raise `OperationalError` if a lock was not free in time; then call it again.
    """
    connection = connections[using]
    with connection.cursor() as cursor:
        cursor.execute(indexes.select_missing())
        missing = {name for name, _ in cursor.fetchall()}
    for model, index in indexes.declared():
        if index.name in missing:
            with connection.schema_editor(atomic=False) as editor:  # which waits without a deadline
                sql = str(index.create_sql(model, editor))
                build(editor.execute, model._meta.db_table, str(index.name), sql, using=using)
            yield str(index.name)


def build(execute: Execute, table: str, name: str, sql: str, *, using: str) -> None:
    """Build one index by its CREATE INDEX. It may be half-built already."""
    quote = connections[using].ops.quote_name
    parent = f" ON {quote(table)} "
    assert parent in sql and sql.startswith("CREATE INDEX ")
    if not _is_partitioned(table, using):
        _build_concurrently(execute, name, sql, using=using)
        return
    execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'")
    if not _without_index(table, name, using) and not _is_valid(name, using):
        # Each partition has it, and one of them an invalid one. PostgreSQL never calls the whole valid again.
        execute(f"DROP INDEX IF EXISTS {quote(name)}")
    on_parent = sql.replace(parent, f" ON ONLY {quote(table)} ", 1)
    execute(on_parent.replace("CREATE INDEX", "CREATE INDEX IF NOT EXISTS", 1))
    for partition in _without_index(table, name, using):
        child = f"{partition}_{name}"[-63:]
        own = sql.replace(parent, f" ON {quote(partition)} ", 1).replace(quote(name), quote(child), 1)
        _build_concurrently(execute, child, own, using=using)
        execute(f"SET lock_timeout = '{LOCK_TIMEOUT}'")
        execute(f"ALTER INDEX {quote(name)} ATTACH PARTITION {quote(child)}")
    execute("RESET lock_timeout")


def _build_concurrently(execute: Execute, name: str, sql: str, *, using: str) -> None:
    """Build an index of one table, after the rest of an interrupted build is dropped."""
    # A lock_timeout would also abort a concurrent build, and leave an invalid index.
    execute("SET lock_timeout = 0")
    execute(f"DROP INDEX CONCURRENTLY IF EXISTS {connections[using].ops.quote_name(name)}")
    execute(sql.replace("CREATE INDEX", "CREATE INDEX CONCURRENTLY", 1))
    execute("RESET lock_timeout")


def _is_partitioned(table: str, using: str) -> bool:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT relkind = 'p' FROM pg_class WHERE oid = to_regclass(%s)", [table])
        return bool(cursor.fetchone()[0])


def _is_valid(name: str, using: str) -> bool:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass(%s)", [name])
        row = cursor.fetchone()
        return row is None or bool(row[0])


def _without_index(table: str, index: str, using: str) -> list[str]:
    """List the partitions of a table that do not have the index yet."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT part.inhrelid::regclass::text FROM pg_inherits AS part"
            " WHERE part.inhparent = to_regclass(%s) AND NOT EXISTS (SELECT FROM pg_inherits AS child"
            " JOIN pg_index ON pg_index.indexrelid = child.inhrelid"
            " WHERE child.inhparent = to_regclass(%s) AND pg_index.indrelid = part.inhrelid)",
            [table, index],
        )
        return [child for (child,) in cursor.fetchall()]
