"""Sizes and connections of PostgreSQL, for metrics and `manage.py status`."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from django.apps import apps
from django.db import connection

#: Each size asks the file system for every file of a table's partitions and indexes.
SIZES_EVERY = 300.0
APPS = ("outbox", "notifications", "orders")


class Sizes(NamedTuple):
    """Bytes on disk."""

    database: int
    tables: dict[str, int]  # with indexes, partitions and TOAST


class Connections(NamedTuple):
    """The client connections of the whole server."""

    by_state: dict[str, int]
    left: int
    oldest_transaction_seconds: float  # of the sessions that our role may see


class Slot(NamedTuple):
    """A replication slot of this database that outlives its reader, such as Debezium's."""

    name: str
    active: bool
    kept: int  # bytes of WAL; 0 once PostgreSQL has given up keeping them


_known: tuple[float, Sizes] | None = None
_reading = threading.Lock()


def sizes() -> Sizes:
    """Return the sizes, at most `SIZES_EVERY` seconds old."""
    global _known
    with _reading:
        if _known is None or time.monotonic() - _known[0] > SIZES_EVERY:
            _known = time.monotonic(), _read_sizes()
        return _known[1]


def _read_sizes() -> Sizes:
    names = [
        model._meta.db_table
        for label in APPS
        for model in apps.get_app_config(label).get_models()
        if model._meta.managed
    ]
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_database_size(current_database())")
        database = cursor.fetchone()[0]
        cursor.execute(
            "SELECT name, (SELECT sum(pg_total_relation_size(relid))"
            " FROM pg_partition_tree(to_regclass(name))) FROM unnest(%s::text[]) AS name",
            [names],
        )
        return Sizes(database, {name: int(size) for name, size in cursor.fetchall() if size is not None})


def connections() -> Connections:
    """Count the connections, and those that an ordinary role can still open."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT CASE WHEN state IN ('active', 'idle') THEN state
                    WHEN state LIKE 'idle in transaction%%' THEN 'idle in transaction' ELSE 'other' END,
                count(*),
                extract(epoch FROM statement_timestamp()
                    - min(xact_start) FILTER (WHERE pid <> pg_backend_pid()))::float8,
                current_setting('max_connections')::int
                    - current_setting('superuser_reserved_connections')::int
                    - coalesce(nullif(current_setting('reserved_connections', true), ''), '0')::int
            FROM pg_stat_activity WHERE backend_type = 'client backend' GROUP BY 1
            """
        )
        found = cursor.fetchall()
    states = dict.fromkeys(("active", "idle", "idle in transaction", "other"), 0)
    states |= {state: count for state, count, _, _ in found}
    most = found[0][3]
    oldest = max((age for _, _, age, _ in found if age is not None), default=0.0)
    return Connections(states, max(0, most - sum(states.values())), max(0.0, oldest))


def slots() -> list[Slot]:
    """Return the lasting replication slots of this database."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT slot_name, active, coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint
            FROM pg_replication_slots WHERE database = current_database() AND NOT temporary
            """
        )
        return [Slot(*row) for row in cursor.fetchall()]
