"""`python -m benchmarks.archives`: build, size and speed of the index beside archives over months.

    .venv/bin/python -m benchmarks.archives --months 12 --rows 250000

Each month has `--rows` e-mails as the templates render them, with texts of their own, to `--customers`
customers; days of events go with them. Every month is archived, indexed and dropped by a rollover. Then
`manage.py archive find` is timed as a process of its own and inside one.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from config.local.machine import PROJECT, free_port
from config.local.servers import EmbeddedPostgres

ID = """(lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(hash, 1, 3)
            || '8' || substr(hash, 4, 15))::uuid"""
NUMBERS = """(SELECT n, md5(%(salt)s || n) AS hash, md5('order' || %(salt)s || n)::uuid AS order_id,
              %(since)s::timestamptz + (%(until)s::timestamptz - %(since)s) * n / (%(rows)s::int + 1) AS at
          FROM generate_series(1, %(rows)s::int) AS n) AS numbers"""
MAILS = f"""
    INSERT INTO {{table}} (id, status, retry_count, max_retries, last_error, errors, provider,
        provider_message_id, correlation_id, traceparent, created_at, updated_at, sent_at, event_type,
        recipient_email, to_name, locale, subject, body, body_text, idempotency_key, order_id)
    SELECT {ID}, 'sent', 0, 3, '', '[]', 'sendgrid', hash, hash, '', at, at, at, 'order.paid',
        'user' || abs(hashint4(n)) %% %(customers)s || '@example.com', 'User ' || n, 'en', 'Your order ' || n,
        replace(%(html)s, 'NUMBER', hash), replace(%(text)s, 'NUMBER', hash), hash, order_id
    FROM {NUMBERS}
"""
EVENTS = f"""
    INSERT INTO {{table}} (id, aggregate_type, aggregate_id, event_type, version, sequence, shard, payload,
        metadata, created_at, retry_count, next_attempt_at, last_error, published_at)
    SELECT {ID}, 'order', order_id, 'order.order.paid.v1', 1, 2, n %% 64,
        jsonb_build_object('orderId', order_id, 'status', 'paid', 'totalAmount', n, 'currency', 'EUR'),
        jsonb_build_object('correlationId', hash), at, 0, at, '', at
    FROM {NUMBERS}
"""


def rendered() -> tuple[str, str]:
    """Return the HTML and text of an e-mail as the templates render it, with NUMBER in it."""
    import uuid

    from notifications.rendering import render_email
    from orders.emails import email_context
    from orders.models import Order

    order = Order(
        id=uuid.uuid4(),
        reference="NUMBER",
        name="NUMBER",
        total_amount=4200,
        currency="EUR",
        items=[{"name": "NUMBER", "quantity": 2, "unit_amount": 2100}],
        locale="en",
    )
    mail = render_email(event_type="order.paid", locale="en", context=email_context(order=order, change={}))
    return mail.body_html, mail.body_text


def fill(*, model: Any, steps: int, rows: int, customers: int) -> str:
    """Make the partition `steps` intervals ago with so many finished rows; return its name."""
    import datetime as dt

    from django.db import connections

    from outbox.retention import partitions

    now = dt.datetime.now(dt.UTC)
    old = partitions.partition_at(model=model, when=now, steps=-steps)
    table = model._meta.db_table
    html, text = rendered()
    with connections["owner"].cursor() as cursor:
        cursor.execute(f"CREATE TABLE {old.name} (LIKE {table} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)")
        statement = f"ALTER TABLE {table} ATTACH PARTITION {old.name} FOR VALUES FROM (%s) TO (%s)"
        bounds = [str(partitions.id_floor(old.since)), str(partitions.id_floor(old.until))]
        cursor.execute(partitions.compose(statement, bounds, using="owner"))
        given = {
            "since": old.since,
            "until": old.until,
            "rows": rows,
            "customers": customers,
            "salt": old.name,
        }
        sql = MAILS if table == "email_notifications" else EVENTS
        cursor.execute(sql.format(table=table), given | {"html": html, "text": text})
        cursor.execute(f"SELECT pg_total_relation_size('{old.name}')")
        print(f"{old.name}: {cursor.fetchone()[0] / 1e6:,.0f} MB with indexes", flush=True)
    return old.name


def timed(function: Callable[[], Any], *, rounds: int = 5) -> tuple[float, float, Any]:
    """Return the median and the longest of the times in ms, and what the last call returned."""
    times, result = [], None
    for _ in range(rounds):
        began = time.perf_counter()
        result = function()
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times), max(times), result


def run(*, months: int, days: int, rows: int, events: int, customers: int) -> None:
    import django

    django.setup()
    from django.core.management import call_command

    from notifications.models import EmailNotification
    from outbox.models import DetachedPartition, OutboxEvent
    from outbox.retention import archive_index, archive_store, rollover
    from outbox.retention.manifest import Manifest

    call_command("migrate", verbosity=0)
    made = [(EmailNotification, 4 + number, rows) for number in range(months)]
    made += [(OutboxEvent, 20 + number, events) for number in range(days)]
    spent, at = {"archived": 0.0, "indexed": 0.0, "other": 0.0}, time.perf_counter()

    def report(step: str, **facts: object) -> None:
        nonlocal at
        if step not in ("bytes", "made", "archive written"):
            spent[step if step in spent else "other"] += time.perf_counter() - at
            at = time.perf_counter()

    for number, (model, steps, count) in enumerate(made, start=1):
        fill(model=model, steps=steps, rows=count, customers=customers)
        if model is OutboxEvent and number < len(made):
            continue
        at = time.perf_counter()
        for _ in range(2):  # the second drops what the first archived
            result = rollover.rollover(report=report)
        assert not (result.held or result.failed or result.waiting), result
    print("seconds:", {step: round(value, 1) for step, value in spent.items()})
    for table in ("email_notifications", "outbox_events"):
        manifests = [Manifest.of(record) for record in DetachedPartition.objects.filter(table=table)]
        sizes = [archive_store.store().size(archive_index.index_name(one)) for one in manifests]
        print(
            f"{table}: {len(manifests)} archives, {sum(one.rows for one in manifests):,} rows,"
            f" CSV {sum(one.csv_bytes for one in manifests) / 1e6:,.0f} MB,"
            f" archives {sum(one.file_bytes for one in manifests) / 1e6:,.0f} MB,"
            f" indexes {sum(sizes) / 1e6:,.1f} MB"
        )
    found = find("user5@example.com")
    order = next(row for row in found if '"recipient_email"' in row).split('"order_id": "')[1][:36]
    for what, words in {
        "an address": ["user5@example.com"],
        "an order": [order],
        "nobody": ["x@y.example"],
    }.items():
        used = time.process_time()
        median, most, lines = timed(lambda words=words: inside(*words))
        cpu = (time.process_time() - used) / 5 * 1000
        print(f"find {what}: {median:.0f} ms (longest {most:.0f}), CPU {cpu:.0f} ms, {len(lines)} rows")
    median, most, _ = timed(lambda: find("user5@example.com"))
    print(f"an address, as a process with its start: {median:.0f} ms (longest {most:.0f})")


def inside(*words: str) -> list[str]:
    """Run `archive find` in this process; return its lines."""
    from django.core.management import call_command

    out = io.StringIO()
    call_command("archive", "find", *words, stdout=out)
    return out.getvalue().splitlines()


def find(*words: str) -> list[str]:
    """Run `archive find` as a process; return its lines."""
    command = [sys.executable, "manage.py", "archive", "find", *words]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--months", type=int, default=12)
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--rows", type=int, default=250_000)
    parser.add_argument("--events", type=int, default=500, help="of each day")
    parser.add_argument("--customers", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="orderpost-archives-") as folder:
        server = EmbeddedPostgres(data=Path(folder) / "postgres", port=free_port())
        server.start(log=Path(folder) / "postgres.log")
        os.environ |= {
            "DATABASE_URL": server.url,
            "REDIS_URL": "redis://127.0.0.1:1",
            "SECRET_KEY": "benchmark",
            "EMAIL_PROVIDERS": "smtp",
            "ARCHIVE_DIR": f"{folder}/archive",
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "LOG_LEVEL": "ERROR",
            "PARTITION_GRACE_DAYS": "0",
            "HTTPS": "off",
        }
        try:
            run(**vars(options))
        finally:
            server.stop()
            server.remove()


if __name__ == "__main__":
    main()
