"""Months of e-mails as `retention` leaves them: attached, detached, and as cold files.

Every month has the same customers. An order has three e-mails. The orders with the lowest numbers belong to
`PERSONS`, who have e-mails in every month, and are the only ones of cold months that have a row in `orders`.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
from django.db import connections

from notifications.models import EmailNotification
from retention import rollover
from retention.cold_files import archive, storage
from retention.cold_files.manifest import Manifest
from retention.models import DetachedPartition
from retention.partitions import detach, partitions
from retention.partitions.locks import OWNER_DATABASE, exclusive_lock, no_statement_timeout
from runtime.database.ids import id_floor
from runtime.database.partitions import Partition

PERSONS = 60
#: Orders of each attached or detached month that have a row in `orders`.
ORDERS = 40_000
ANSWERS, EVENTS = 100_000, 100_000
TABLE = "email_notifications"
#: E-mails that are loaded at once, each in its own table.
_THREADS = 3

_ID = """(lpad(to_hex((extract(epoch FROM {at}) * 1000)::bigint), 12, '0') || '70008{kind}'
    || lpad(to_hex({n}), 14, '0'))::uuid"""


def _id(*, at: str, kind: str, n: str) -> str:
    """Return the SQL of an id of that time and number. The kind is a hex digit."""
    return _ID.format(at=at, kind=kind, n=n)


def _order_id(k: str) -> str:
    """Return the SQL of the id of a month's order with that number."""
    return _id(at=_ORDER_AT.format(k=k), kind="b", n=k)


_ORDER_AT = "%(since)s::timestamptz + (3 * ({k}) + 1) * %(step)s::interval"
_ADDRESS = f"CASE WHEN k < {PERSONS} THEN 'person' ELSE 'user' END || k || '@example.com'"
_FILL = f"""
    INSERT INTO {{table}} (id, created_at, updated_at, next_attempt_at, sent_at, delivered_at, status,
        retry_count, max_retries, last_error, errors, provider, provider_message_id, correlation_id,
        traceparent, event_type, recipient_email, to_name, locale, subject, body, body_text,
        idempotency_key, order_id)
    SELECT {_id(at="at", kind="a", n="n")}, at, at + interval '9 s', at, at + interval '1 s',
        at + interval '9 s', 'sent', 0, 3, '', '[]', 'sendgrid', hash, substr(hash, 1, 16), '', event,
        {_ADDRESS}, 'Customer ' || k, 'en', 'Your order ' || k || ' is ' || event,
        '<p>Dear customer ' || k || ', your order ' || substr(hash, 17) || ' is ' || event || '. Thank you.'
        || repeat('<p>Tea</p>', 10), 'Your order ' || substr(hash, 17) || ' is ' || event || '. Thank you.',
        substr(hash, 1, 24), {_order_id("k")}
    FROM (SELECT n, (n - 1) / 3 AS k, md5(n || %(since)s::text) AS hash,
            (ARRAY['order.paid', 'order.confirmed', 'order.completed'])[n %% 3 + 1] AS event,
            %(since)s::timestamptz + n * %(step)s::interval AS at
        FROM generate_series(1, %(count)s) AS n OFFSET 0) AS mail
    WHERE at < now()
"""
_ORDERS = f"""
    INSERT INTO orders (id, status, version, user_id, email, name, locale, reference, items, total_amount,
        refunded_amount, currency, correlation_id, created_at, updated_at, paid_at, stock_reserved_at,
        completed_at)
    SELECT {_id(at="at", kind="b", n="k")}, 'completed', 4, md5(k::text)::uuid, {_ADDRESS}, 'Customer ' || k,
        'en', 'R-' || k, '[{{"sku": "tea", "name": "Tea", "quantity": 1, "unit_amount": 4200}}]', 4200, 0,
        'EUR', md5(k || %(since)s::text), at, at, at, at, at
    FROM (SELECT k, {_ORDER_AT.format(k="k")} AS at
        FROM generate_series(0, %(orders)s - 1) AS k OFFSET 0) AS one
"""
_EVENTS = f"""
    INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, version, sequence, payload,
        metadata, shard, retry_count, last_error, created_at, published_at)
    SELECT {_id(at="at", kind="c", n="n")}, 'order', {_order_id("n / 4")},
        'order.order.completed.v1', 1, n %% 4 + 1, '{{"status": "completed", "totalAmount": 4200,
        "currency": "EUR", "trackingUrl": "https://track.test/1"}}',
        '{{"correlationId": "1"}}', n %% 64, 0, '', at, at
    FROM (SELECT n, now() - interval '1 h' + n * interval '1 ms' AS at
        FROM generate_series(0, %(events)s - 1) AS n OFFSET 0) AS one
"""
_ANSWERS = f"""
    INSERT INTO idempotency_keys (scope, key, request_hash, answer_status, answer_body, answer_location)
    SELECT 'token:1', md5(n::text), md5(n::text), 201, json_build_object('id',
        CASE WHEN n < {PERSONS} THEN {_order_id("n")} ELSE gen_random_uuid() END,
        'status', 'paid', 'email', (SELECT {_ADDRESS} FROM (SELECT n AS k) AS one), 'name', 'Customer ' || n,
        'total_amount', 4200, 'items', repeat('tea ', 60))::text, ''
    FROM generate_series(0, %(answers)s - 1) AS n
"""


def address(person: int) -> str:
    return f"person{person}@example.com"


def month(*, back: int) -> Partition:
    """Return the partition of e-mails of so many months ago."""
    return partitions.partition_at(model=EmailNotification, when=dt.datetime.now(dt.UTC), steps=-back)


def order_id(partition: Partition, person: int, rows: int) -> str:
    """Return the id of a person's order in a month of so many e-mails."""
    with connections[OWNER_DATABASE].cursor() as cursor:
        cursor.execute(f"SELECT {_order_id('%(k)s::int')}", {**_values(partition, rows), "k": person})
        return str(cursor.fetchone()[0])


def _values(partition: Partition, rows: int) -> dict[str, object]:
    return {"since": partition.since, "step": (partition.until - partition.since) / (rows + 1), "count": rows}


def fill_rest(*, url: str, rows: int) -> None:
    """Fill the tables that are not partitioned by month: answers, and events of this month's orders."""
    values = {**_values(month(back=0), rows), "events": EVENTS, "answers": ANSWERS}
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(_EVENTS, values)
        connection.execute(_ANSWERS, values)
        connection.execute("VACUUM (ANALYZE) outbox_events, idempotency_keys")


def load(*, url: str, backs: list[int], rows: int) -> None:
    """Load and attach months, some at once. They replace empty partitions of the same name."""
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(lambda back: _load(url, month(back=back), rows), backs):
            pass


def _load(url: str, partition: Partition, rows: int) -> None:
    """Load a table, make its indexes and attach it, which finds the indexes and the bounds' CHECK."""
    with psycopg.connect(url, autocommit=True) as connection:
        if connection.execute("SELECT to_regclass(%s)", [partition.name]).fetchone()[0]:
            connection.execute(f"ALTER TABLE {TABLE} DETACH PARTITION {partition.name}")
            connection.execute(f"DROP TABLE {partition.name}")
        _fill(connection, partition, rows, has_bounds=True)
        indexes = connection.execute(
            "SELECT pg_get_indexdef(indexrelid) FROM pg_index"
            " WHERE indrelid = %s::regclass AND NOT indisprimary",
            [TABLE],
        ).fetchall()
        for (definition,) in indexes:
            connection.execute(re.sub(r"INDEX \S+ ON ONLY \S+", f"INDEX ON {partition.name}", definition))
        floor, ceiling = id_floor(partition.since), id_floor(partition.until)
        connection.execute(
            f"ALTER TABLE {TABLE} ATTACH PARTITION {partition.name}"
            f" FOR VALUES FROM ('{floor}') TO ('{ceiling}')"
        )
        connection.execute(f"ALTER TABLE {partition.name} DROP CONSTRAINT bounds")
        connection.execute(_ORDERS, {**_values(partition, rows), "orders": min(ORDERS, rows // 3)})
        connection.execute(f"VACUUM (ANALYZE) {partition.name}")


def _fill(connection: psycopg.Connection, partition: Partition, rows: int, *, has_bounds: bool) -> None:
    """Create a table and fill it in one transaction, which `wal_level=minimal` does not log."""
    with connection.transaction():
        connection.execute(
            f"CREATE TABLE {partition.name} (LIKE {TABLE}"
            " INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE)"
            f" WITH ({partitions._STORAGE})"
        )
        day = dt.timedelta(days=1)
        connection.execute(
            f"ALTER TABLE {partition.name} ADD CONSTRAINT {partition.name}_created CHECK"
            f" (created_at >= '{partition.since - day}' AND created_at < '{partition.until + day}')"
        )
        if has_bounds:
            connection.execute(
                f"ALTER TABLE {partition.name} ADD CONSTRAINT bounds CHECK"
                f" (id >= '{id_floor(partition.since)}' AND id < '{id_floor(partition.until)}')"
            )
        connection.execute(_FILL.format(table=partition.name), _values(partition, rows))
        connection.execute(f"ALTER TABLE {partition.name} ADD PRIMARY KEY (id)")


def detach_months(backs: list[int]) -> None:
    """Detach months by the product's own statements, which record them."""
    with exclusive_lock(model=EmailNotification):
        for back in backs:
            detach.detach(model=EmailNotification, name=month(back=back).name, report=lambda *_, **__: None)


def write_cold(*, url: str, backs: list[int], rows: int) -> Iterator[float]:
    """Write cold months by the product's writer, and yield the seconds of each."""
    for back in backs:
        partition = month(back=back)
        with psycopg.connect(url, autocommit=True) as connection:
            _fill(connection, partition, rows, has_bounds=False)
            connection.execute(_ORDERS, {**_values(partition, rows), "orders": PERSONS})
        record = DetachedPartition.objects.using(OWNER_DATABASE).create(
            name=partition.name, table=TABLE, since=partition.since, until=partition.until
        )
        began = dt.datetime.now()
        rollover.archive_partition(record=record, report=lambda *_, **__: None)
        yield (dt.datetime.now() - began).total_seconds()
        detach.drop(record=record, report=lambda *_, **__: None)


def tables_with(text: str) -> list[str]:
    """List the tables with a text in some row."""
    tables = []
    with no_statement_timeout(using=OWNER_DATABASE) as cursor:
        cursor.execute(
            "SELECT quote_ident(relname), string_agg(format('%I::text LIKE %%s', attname), ' OR '), count(*)"
            " FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid WHERE relkind = 'r'"
            " AND relnamespace = 'public'::regnamespace AND attnum > 0 AND NOT attisdropped"
            " AND atttypid = ANY('{text,varchar,jsonb}'::regtype[]) GROUP BY 1"
        )
        for table, condition, columns in cursor.fetchall():
            cursor.execute(f"SELECT count(*) FROM {table} WHERE {condition}", [f"%{text}%"] * columns)
            if cursor.fetchone()[0]:
                tables.append(table)
    return tables


def cold_files_with(text: str) -> list[str]:
    """List the partitions whose cold file has a text."""
    names = []
    for record in archive.cold_partitions(table=TABLE):
        chunks = storage.read_csv(manifest=Manifest.of(record))
        if sum(text.encode() in line for line in storage.lines_of(chunks)):
            names.append(record.name)
    return names
