"""Let days pass: move finished rows to an older partition, which a rollover then detaches and archives.

Clocks do not change, so leases, holds and timeouts keep their lengths. `pass_day` runs in a Django process
(`manage.py shell`); the rest needs only the database's URL.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg
import psycopg.sql

#: Age rows that were finished so long ago, because their webhooks have come and no client repeats a request.
SETTLED_SECONDS = 45
#: For each purged table, its column of time, and more days than its retention.
PURGED = {"idempotency_keys": ("created_at", 8), "processed_events": ("processed_at", 31)}
DAYS = 7
SCHEMA = "soak"

PREPARE = """
    CREATE FUNCTION soak_moved(id uuid, ms bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
        SELECT (lpad(to_hex(('x' || left(hex, 12))::bit(48)::bigint + ms), 12, '0') || substr(hex, 13))::uuid
        FROM replace(id::text, '-', '') AS hex $$;
    CREATE TABLE soak_events AS
        SELECT id, aggregate_type, aggregate_id, event_type, sequence, position, published_at
        FROM outbox_events WHERE false
"""
#: The condition of finished rows of each partitioned table.
FINISHED = {
    "email_notifications": "status = 'sent' AND delivered_at IS NOT NULL AND sent_at",
    "outbox_events": "published_at",
}


class Aged(NamedTuple):
    """A partition that rows were moved to, their number, and by how many milliseconds."""

    partition: str
    table: str
    rows: int
    milliseconds: int


def pass_day(*, day: int, began: float) -> None:
    """Make the old partitions that represent this day, and age its finished rows. Print the list of `Aged`.

    `began` is when the week began (epoch seconds). No row is older.
    """
    from django.db import connections, transaction

    from outbox.database.ids import id_floor
    from outbox.retention.partitions import partitions

    start = dt.datetime.fromtimestamp(began, dt.UTC)
    aged = []
    for model in partitions.partitioned_models():
        table = model._meta.db_table
        months = model.retention.interval == "month"
        target = partitions.partition_at(
            model=model, when=start, steps=-(DAYS + 2 - day) - (0 if months else model.hot().days)
        )
        partitions._make(model=model, partition=target, using="owner", lock_timeout="5s")
        moved = round((target.since - start).total_seconds() * 1000)
        with transaction.atomic(using="owner"), connections["owner"].cursor() as cursor:
            cursor.execute(
                f"UPDATE {table} SET id = soak_moved(id, %(ms)s),"
                " created_at = created_at + %(ms)s * interval '1 millisecond'"
                f" WHERE id >= %(start)s AND {FINISHED[table]} < now() - %(settled)s * interval '1 second'",
                {"ms": moved, "start": id_floor(start), "settled": SETTLED_SECONDS},
            )
            aged.append(Aged(target.name, table, cursor.rowcount, moved))
            if not months:  # for the audit, because a day of events is dropped without a file
                cursor.execute(
                    "INSERT INTO soak_events SELECT soak_moved(id, %s), aggregate_type, aggregate_id,"
                    f" event_type, sequence, position, published_at FROM {target.name}",
                    [-moved],
                )
    with connections["owner"].cursor() as cursor:
        for table, (column, days) in PURGED.items():
            cursor.execute(
                f"UPDATE {table} SET {column} = {column} - %s * interval '1 day'"
                f" WHERE {column} BETWEEN now() - interval '1 day' AND now() - interval '2 minutes'",
                [days],
            )
    print("\n" + json.dumps(aged))


def show_restored(url: str, aged: Sequence[Aged]) -> str:
    """Make views of the live tables with the restored archives or `soak_events`, by the rows' original ids.

    Return a URL with which the tables' names mean these views.
    """
    columns = {
        "email_notifications": "id, order_id, event_type, idempotency_key, status, recipient_email",
        "outbox_events": "id, aggregate_type, aggregate_id, event_type, sequence, position, published_at",
    }
    with psycopg.connect(url, autocommit=True) as connection:

        def run(sql: str) -> None:
            connection.execute(sql.encode())

        run(f"CREATE SCHEMA {SCHEMA}")
        run(f"CREATE VIEW {SCHEMA}.orders AS SELECT * FROM public.orders")
        for table, names in columns.items():
            parts = [f"SELECT {names} FROM public.{table}"]
            if table == "outbox_events":
                parts.append("SELECT * FROM public.soak_events")
            for one in aged:
                if one.table == table == "email_notifications" and one.rows:
                    first = f"soak_moved(id, {-one.milliseconds}) AS {names}"
                    parts.append(f"SELECT {first} FROM public.{one.partition}_restored")
            run(f"CREATE VIEW {SCHEMA}.{table} AS " + " UNION ALL ".join(parts))
    separator = "&" if "?" in url else "?"
    return f"{url}{separator}options=-csearch_path%3D{SCHEMA},public"


def leftovers(url: str, *, began: float) -> list[tuple[Any, ...]]:
    """Return how many aged rows are in no archive, by table."""
    found = []
    with psycopg.connect(url, autocommit=True) as connection:
        for table in FINISHED:
            row = connection.execute(
                psycopg.sql.SQL(
                    "SELECT count(*) FROM {} WHERE created_at < to_timestamp(%s) - interval '1 hour'"
                ).format(psycopg.sql.Identifier(table)),
                [began],
            ).fetchone()
            assert row is not None
            found.append((table, row[0]))
    return found
