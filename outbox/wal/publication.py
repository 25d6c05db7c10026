"""The publications that select the tables for a follower, one for each table.

A table's owner may make its publication if the role has CREATE in the database. A partitioned table is
published as a whole, so new partitions belong to it after their ATTACH. A publication has neither a list of
columns nor a filter of rows, because with either an UPDATE would fail on a partition whose replica identity
does not cover them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import psycopg
from django.db import connections, transaction
from psycopg import sql

from outbox.wal.pgoutput import Watched

LOCK_TIMEOUT = "5s"


def name_of(watched: Watched) -> str:
    return f"orderpost_{watched.table}"


def make(watched: Iterable[Watched], *, using: str = "owner") -> Iterator[str]:
    """Make the publications that are missing or wrong. Yield their names.

    Raise `ProgrammingError` if the role does not own a table or has no CREATE in the database, and
    `OperationalError` if a lock was not free within `LOCK_TIMEOUT`.
    """
    everything = list(watched)
    with connections[using].cursor() as cursor:
        cursor.execute(_WRONG, [_wanted(everything)])
        wrong = {name for (name,) in cursor.fetchall()}
    quote = connections[using].ops.quote_name
    for one in everything:
        name = name_of(one)
        if name not in wrong:
            continue
        events = "insert, update" if one.has_updates else "insert"
        with transaction.atomic(using=using), connections[using].cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [LOCK_TIMEOUT])
            cursor.execute(f"DROP PUBLICATION IF EXISTS {quote(name)}")
            cursor.execute(
                f"CREATE PUBLICATION {quote(name)} FOR TABLE {quote(one.table)}"
                f" WITH (publish = '{events}', publish_via_partition_root = true)"
            )
        yield name


def _wanted(watched: Iterable[Watched]) -> str:
    return ";".join(f"{name_of(one)},{one.table},{one.has_updates}" for one in watched)


#: The names of the wanted publications that do not exist or differ.
_WRONG = """
    SELECT name FROM (
        SELECT split_part(one, ',', 1) AS name, split_part(one, ',', 2) AS table_name,
            split_part(one, ',', 3)::boolean AS updates
        FROM string_to_table(%s, ';') AS one
    ) AS wanted
    WHERE NOT EXISTS (
        SELECT FROM pg_publication JOIN pg_publication_rel ON prpubid = pg_publication.oid
        WHERE pubname = name AND prrelid = to_regclass(table_name) AND prqual IS NULL AND prattrs IS NULL
            AND pubviaroot AND pubinsert AND (pubupdate OR NOT updates)
    )
    ORDER BY name
"""


def wrong(connection: psycopg.Connection[Any], watched: Sequence[Watched]) -> list[str]:
    """Return the names of missing or wrong publications, through a replication connection.

    Such a connection cannot send parameters, so the statement contains the values.
    """
    text = sql.SQL(_WRONG.replace("%s", "{}")).format(sql.Literal(_wanted(watched)))
    return [name for (name,) in connection.execute(text).fetchall()]
