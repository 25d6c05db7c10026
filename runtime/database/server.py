"""Sizes, connections and replication slots of PostgreSQL, for metrics and `manage.py status`."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import NamedTuple

from django.apps import apps
from django.conf import settings
from django.db import connection, connections

from runtime.database import replica

#: How long sizes are kept. To compute one, PostgreSQL asks the file system for every file of a table.
SIZES_SECONDS = 300.0


class Sizes(NamedTuple):
    """Bytes on disk."""

    database: int
    tables: dict[str, int]  # with indexes, partitions and TOAST


class ReplicationSlot(NamedTuple):
    """A replication slot of this database that outlives its reader, such as Debezium's."""

    name: str
    is_active: bool
    kept: int  # bytes of WAL, or 0 after PostgreSQL has removed the WAL that the slot needs


#: The client connections of the whole server by state: their number, and the most of all states.
SESSIONS = """
    SELECT CASE WHEN state IN ('active', 'idle') THEN state
            WHEN state LIKE 'idle in transaction%' THEN 'idle in transaction' ELSE 'other' END AS state,
        count(*) AS number,
        extract(epoch FROM statement_timestamp()
            - min(xact_start) FILTER (WHERE pid <> pg_backend_pid()))::float8 AS oldest,
        current_setting('max_connections')::int
            - current_setting('superuser_reserved_connections')::int
            - coalesce(nullif(current_setting('reserved_connections', true), ''), '0')::int AS most
    FROM pg_stat_activity WHERE backend_type = 'client backend' GROUP BY 1
"""

#: The sessions that do nothing in a transaction with a lock of a table that only writers take, or for which
#: others wait, with the time of their last statement. Whether a session of another role does nothing, only
#: pg_read_all_stats tells: of those, only the ones that others wait for a second for, without a time.
IDLE_IN_TRANSACTION = """
    SELECT session.pid, usename AS username, application_name AS application,
        to_char(state_change AT TIME ZONE 'UTC', 'HH24:MI') AS since,
        extract(epoch FROM statement_timestamp() - state_change)::float8 AS seconds,
        coalesce(waiting, 0) AS waiting
    FROM pg_stat_activity AS session LEFT JOIN (
        SELECT blocker AS pid, count(DISTINCT blocked.pid) AS waiting,
            statement_timestamp() - min(waitstart) AS longest
        FROM (SELECT pid, min(waitstart) AS waitstart FROM pg_locks WHERE NOT granted GROUP BY 1) AS blocked,
            unnest(pg_blocking_pids(blocked.pid)) AS blocker
        GROUP BY 1
    ) AS blocking USING (pid)
    WHERE datname = current_database() AND session.pid <> pg_backend_pid()
        AND (state LIKE 'idle in transaction%' OR state IS NULL AND longest > interval '1 second')
        AND (waiting > 0 OR EXISTS (
            SELECT FROM pg_locks AS held
            WHERE held.pid = session.pid AND locktype = 'relation' AND granted
                AND mode NOT IN ('AccessShareLock', 'ShareUpdateExclusiveLock')
        ))
    ORDER BY seconds DESC LIMIT 5
"""

_known: tuple[float, Sizes] | None = None
_reading = threading.Lock()


def count_connections_left() -> int:
    """Return how many more connections ordinary roles can open."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT max(most) - sum(number) FROM ({SESSIONS}) AS found")  # noqa: S608 - no values
        return max(0, int(cursor.fetchone()[0]))


def sizes() -> Sizes:
    """Return the sizes, at most `SIZES_SECONDS` old."""
    global _known
    with _reading:
        if _known is None or time.monotonic() - _known[0] > SIZES_SECONDS:
            _known = time.monotonic(), _read_sizes()
        return _known[1]


def _read_sizes() -> Sizes:
    names = [
        model._meta.db_table
        for app in apps.get_app_configs()
        if Path(app.path).parent == settings.BASE_DIR  # not a library's
        for model in app.get_models()
        if model._meta.managed
    ]
    with connections[replica.alias()].cursor() as cursor:
        cursor.execute("SELECT pg_database_size(current_database())")
        database = cursor.fetchone()[0]
        cursor.execute(
            "SELECT name, (SELECT sum(pg_total_relation_size(relid))"
            " FROM pg_partition_tree(to_regclass(name))) FROM unnest(%s::text[]) AS name",
            [names],
        )
        return Sizes(database, {name: int(size) for name, size in cursor.fetchall() if size is not None})


def replication_slots() -> list[ReplicationSlot]:
    """Return the permanent replication slots of this database."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT slot_name, active, coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn), 0)::bigint
            FROM pg_replication_slots WHERE database = current_database() AND NOT temporary
            """
        )
        return [ReplicationSlot(*row) for row in cursor.fetchall()]
