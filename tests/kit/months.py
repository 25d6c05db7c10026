"""Make, fill and drop old partitions for tests."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import psycopg.conninfo
from django.db import connection
from django.db.models import F

from retention.partitioned import partitioned_models
from retention.partitions.catalogue import PartitionTable, partition_tables
from tests.kit.mails import ENDED_BY
from tests.kit.words import (
    DetachedPartition,
    EmailNotification,
    Partition,
    PartitionedModel,
    id_floor,
    new_id,
    partitions,
    read_database_time,
    rollover,
)


def dsn(name: str = "") -> str:
    """Return the connection string of the test's database, or of that name, for another session."""
    wanted = connection.settings_dict
    return psycopg.conninfo.make_conninfo(
        host=wanted["HOST"], port=wanted["PORT"], user=wanted["USER"], dbname=name or wanted["NAME"]
    )


def make_partition(model: PartitionedModel, *, back: int) -> Partition:
    """Make and attach the partition `back` intervals ago, as `ensure` would have made it then."""
    partition = partitions.partition_at(model=model, when=dt.datetime.now(dt.UTC), steps=-back)
    parent, day = model._meta.db_table, dt.timedelta(days=1)
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE {partition.name} (LIKE {parent} INCLUDING DEFAULTS INCLUDING CONSTRAINTS)"
        )
        cursor.execute(
            partitions.compose(
                f"ALTER TABLE {partition.name} ADD CONSTRAINT {partition.name}_created"
                " CHECK (created_at >= %s AND created_at < %s)",
                [partition.since - day, partition.until + day],
                using="default",
            )
        )
        cursor.execute(
            partitions.compose(
                f"ALTER TABLE {parent} ATTACH PARTITION {partition.name} FOR VALUES FROM (%s) TO (%s)",
                [str(id_floor(partition.since)), str(id_floor(partition.until))],
                using="default",
            )
        )
    return partition


def last_month(**before_its_end: float) -> dt.datetime:
    """Return a time so long before the end of last month, whose partition exists on every day of this one."""
    return partitions.start_of(interval="month", when=read_database_time()) - dt.timedelta(**before_its_end)


def fill(partition: Partition, count: int = 10, **fields: Any) -> list[uuid.UUID]:
    """Write e-mails of an old month with its ids and times, and with values that a CSV could garble."""
    rows = []
    for number in range(count):
        when = partition.since + (partition.until - partition.since) * (number + 0.5) / count
        id = uuid.UUID(int=id_floor(when).int | (7 << 76) | (2 << 62) | number)
        values: dict[str, Any] = {
            "id": id,
            "created_at": when,
            "event_type": "order.paid",
            "recipient_email": "alice@example.com",
            "to_name": "Alice",
            "order_id": new_id(),
            "subject": 'Ünicode, "quotes" \\N',
            "body": "<p>a\r\nb,\tc</p>",
            "body_text": "",
            "idempotency_key": str(number),
            "status": "sent",
        } | fields
        values.setdefault("ended_by", ENDED_BY.get(values["status"], ""))
        values.setdefault("sent_at", when if values["status"] == "sent" else None)
        rows.append(EmailNotification(**values))
    EmailNotification.objects.bulk_create(rows)
    return [row.id for row in rows]


@contextmanager
def tidy() -> Iterator[None]:
    """After a test, drop every partition that is older than those of migrate, attached or not."""
    before = {model: {table.name for table in _tables(model)} for model in partitioned_models()}
    try:
        yield
    finally:
        for model, names in before.items():
            for table in _tables(model):
                if table.name in names:
                    continue
                with connection.cursor() as cursor:
                    if table.state == "pending":
                        cursor.execute(
                            f"ALTER TABLE {model._meta.db_table} DETACH PARTITION {table.name} FINALIZE"
                        )
                    cursor.execute(f"DROP TABLE {table.name}")
        with connection.cursor() as cursor:
            cursor.execute("SELECT tablename FROM pg_tables WHERE tablename ~ '_(restored|rewritten)$'")
            for (name,) in cursor.fetchall():
                cursor.execute(f"DROP TABLE {name}")


def _tables(model: PartitionedModel) -> list[PartitionTable]:
    return partition_tables(model=model, using="default")


def states(model: PartitionedModel = EmailNotification) -> dict[str, str]:
    """Return each partition's state, by name."""
    return {table.name: table.state for table in _tables(model)}


class Steps(list[str]):
    """A report that keeps the names of the steps."""

    def __call__(self, step: str, **facts: Any) -> None:
        if step != "bytes":
            self.append(step)


def roll(**options) -> tuple[rollover.Rollover, Steps]:
    steps = Steps()
    return rollover.rollover(report=steps, **options), steps


def age_records(days: int = 30) -> None:
    span = dt.timedelta(days=days)
    DetachedPartition.objects.update(detached_at=F("detached_at") - span, archived_at=F("archived_at") - span)


def count(table: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table}")
        count: int = cursor.fetchone()[0]
        return count


def files(tmp_path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "archive").rglob("*") if path.is_file())


@contextmanager
def any_times() -> Iterator[None]:
    """Let e-mails have times outside their partitions' months. At the end, delete all e-mails."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT conrelid::regclass, conname, pg_get_constraintdef(oid) FROM pg_constraint
            WHERE conname ~ '^email_notifications_.*_created$'
            """
        )
        checks = cursor.fetchall()
        for table, name, _ in checks:
            cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    try:
        yield
    finally:
        EmailNotification.objects.all().delete()
        with connection.cursor() as cursor:
            for table, name, definition in checks:
                cursor.execute(f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}")
