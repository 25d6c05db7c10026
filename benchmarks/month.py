"""A month's end at a million rows, on a database of its own: archive, verify, restore, compare, drop, admin.

    .venv/bin/python benchmarks/month.py --rows 1000000

Fill a past month with e-mails of about 2 kB, roll it over, restore it and compare. Print the time of each
step, sizes and the process's peak memory. Then print the SQL statements and sequential scans of each admin
page beside a million hot rows.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from config.local.machine import free_port
from config.local.servers import EmbeddedPostgres

if TYPE_CHECKING:
    from outbox.retention.partitions import Partition

FILL = """
    INSERT INTO email_notifications (id, status, retry_count, max_retries, last_error, errors, provider,
        provider_message_id, correlation_id, traceparent, created_at, updated_at, sent_at, event_type,
        recipient_email, to_name, locale, subject, body, body_text, idempotency_key, order_id)
    SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(hash, 1, 3)
            || '8' || substr(hash, 4, 15))::uuid,
        status, 0, 3, '', '[]', 'sendgrid', hash, hash, '', at, at, CASE WHEN status = 'sent' THEN at END,
        'order.paid', 'user' || n %% 500000 || '@example.com', 'User ' || n, 'en', 'Your order ' || n,
        repeat('<p>What every e-mail of a template has.</p>', 40) || more, more, n::text, gen_random_uuid()
    FROM (SELECT n, md5(n::text) AS hash, concat(md5(n || 'a'), md5(n || 'b'), md5(n || 'c')) AS more,
              %(since)s::timestamptz + (%(until)s::timestamptz - %(since)s) * n / (%(rows)s::int + 1) AS at,
              CASE WHEN n %% 1000 = 0 AND %(dead)s::bool THEN 'dead_lettered' ELSE 'sent' END AS status
          FROM generate_series(1, %(rows)s::int) AS n) AS numbers
"""


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long the body took."""
    began = time.perf_counter()
    yield
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{what:<28} {time.perf_counter() - began:7.1f} s   peak {peak:5.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory(prefix="orderpost-month-") as folder:
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
            run(rows)
        finally:
            server.stop()
            server.remove()


def write_month(*, now: dt.datetime, rows: int) -> tuple[Partition, int]:
    """Make the partition of four months ago with `rows` sent e-mails; return it and its size in bytes."""
    from django.db import connections

    from notifications.models import EmailNotification
    from outbox.retention import partitions

    old = partitions.partition_at(model=EmailNotification, when=now, steps=-4)
    with connections["owner"].cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE {old.name} (LIKE email_notifications INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
        )
        cursor.execute(
            partitions.compose(
                f"ALTER TABLE email_notifications ATTACH PARTITION {old.name} FOR VALUES FROM (%s) TO (%s)",
                [str(partitions.id_floor(old.since)), str(partitions.id_floor(old.until))],
                using="owner",
            )
        )
        with timed(f"{rows:,} rows written"):
            given = {"since": old.since, "until": old.until, "rows": rows, "dead": False}
            cursor.execute(FILL, given)
        cursor.execute("VACUUM ANALYZE email_notifications")
        cursor.execute("SELECT pg_total_relation_size(%s::regclass)", [old.name])
        size = cursor.fetchone()[0]
    return old, size


def run(rows: int) -> None:
    """Measure the end of a month, then the admin."""
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connections

    from notifications.models import EmailNotification
    from outbox.models import DetachedPartition
    from outbox.retention import archive, partitions, restore, rollover
    from outbox.retention.manifest import Manifest

    call_command("migrate", verbosity=0)
    now = dt.datetime.now(dt.UTC)
    old, size = write_month(now=now, rows=rows)
    began: dict[str, float] = {}

    def step(name: str, **facts: object) -> None:
        if name not in ("bytes", "made"):
            print(f"  {name:<26} after {time.perf_counter() - began['at']:7.1f} s")

    with timed("rollover"):
        began["at"] = time.perf_counter()
        result = rollover.rollover(report=step)
        assert not (result.held or result.failed or result.waiting), result
    record = DetachedPartition.objects.get(name=old.name)
    manifest = Manifest.of(record)
    print(
        f"table {size / 1e6:,.0f} MB, CSV {manifest.csv_bytes / 1e6:,.0f} MB, archive"
        f" {manifest.file_bytes / 1e6:,.0f} MB"
    )
    with timed("verify"):
        archive.verify(manifest=manifest)
    with timed("restore and compare"):
        table = restore.restore(record=record)
    with timed("find one address"):
        found = list(archive.find(record=record, wanted=lambda row: row["to_name"] == "User 5"))
    with connections["owner"].cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table}")
        print(f"rows: {manifest.rows:,} archived, {cursor.fetchone()[0]:,} restored, {len(found)} found")
        cursor.execute(f"DROP TABLE {table}")
        with timed(f"{rows:,} hot rows written"):
            start = partitions.start_of(interval="month", when=now)
            given = {"since": start, "until": now, "rows": rows, "dead": True}
            cursor.execute(FILL, given)
        cursor.execute("VACUUM ANALYZE email_notifications")
    pages(partitions.partition_at(model=EmailNotification, when=now).name)


def _scans(plan: object) -> Iterator[dict[str, str]]:
    if isinstance(plan, list):
        for one in plan:
            yield from _scans(one)
    elif isinstance(plan, dict):
        if plan.get("Node Type") == "Seq Scan":
            yield plan
        yield from _scans(list(plan.values()))


def pages(filled: str) -> None:
    """Print for each admin page: statements, sequential scans of the partition `filled`, time."""
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    client = Client(SERVER_NAME="localhost")
    client.force_login(User.objects.create_superuser("bench", password="x"))
    for name, query in {
        "first page": "",
        "dead letters": "?status=dead_lettered",
        "search by address": "?q=user77@example.com",
        "dead letters, last 7 days": "?status=dead_lettered&age=7d",
    }.items():
        client.get(f"/admin/notifications/emailnotification/{query}")
        began = time.perf_counter()
        with CaptureQueriesContext(connection) as queries:
            assert client.get(f"/admin/notifications/emailnotification/{query}").status_code == 200
        took = (time.perf_counter() - began) * 1000
        selects = [q["sql"] for q in queries if q["sql"].startswith("SELECT") and "email_notif" in q["sql"]]
        scans = 0
        with connection.cursor() as cursor:
            for sql in selects:
                cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}")
                plan = cursor.fetchone()[0]
                scans += sum(node["Relation Name"] == filled for node in _scans(plan))
        print(
            f"admin, {name:<26} {len(queries):2} statements, {scans} sequential scans of it, {took:4.0f} ms"
        )


if __name__ == "__main__":
    main()
