"""Drill: the whole life of a month of 100,000 e-mails. `pytest -s` shows the seconds of each step."""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models.functions import Now

from tests.kit.months import Steps, age_records, count, fill, make_partition, roll, states
from tests.kit.orders import make_order
from tests.kit.people import grep
from tests.kit.words import (
    DetachedPartition,
    EmailNotification,
    Erasure,
    Order,
    Partition,
    erase_person,
    export_person,
    has_table,
    id_floor,
    read_timeline,
)

pytestmark = [
    pytest.mark.drill,
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
]
ANN, BOB = "ann@example.com", "bob@example.com"
EMAILS = 100_000
FILL = """
    INSERT INTO email_notifications (id, created_at, status, retry_count, max_retries, last_error, errors,
        provider, provider_message_id, correlation_id, traceparent, sent_at, event_type, recipient_email,
        to_name, locale, subject, body, body_text, idempotency_key, order_id)
    SELECT (lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0')
            || '7' || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid,
        at, 'sent', 0, 3, '', '[]', 'sendgrid', md5(n::text), '', '', at, 'order.paid',
        'user' || n || '@example.com', 'User ' || n, 'en', 'Order ' || n,
        '<p>' || repeat('Thank you, user ' || n || '. ', 60) || md5(n::text) || '</p>',
        repeat('Thank you, user ' || n || '. ', 20), n::text, gen_random_uuid()
    FROM generate_series(1, %s) AS n,
        LATERAL (SELECT %s::timestamptz + n * interval '20 seconds' AS at) AS times
"""


@contextmanager
def timed(step: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"{step}: {time.monotonic() - began:.2f} s")


def order_in(month: Partition) -> Order:
    """Write an order of Ann with three e-mails, and one e-mail to Bob, in an old month."""
    first = month.since + dt.timedelta(hours=1)
    order = make_order(id=uuid.UUID(int=id_floor(first).int | 7 << 76 | 2 << 62), email=ANN)
    Order.objects.filter(id=order.id).update(created_at=first, status="completed", completed_at=first)
    fill(month, 3, order_id=order.id, recipient_email=ANN, to_name="Ann Example")
    fill(month, 1, recipient_email=BOB, idempotency_key="bob")
    order.refresh_from_db()
    return order


def emails_of(order: Order) -> int:
    return sum(entry.kind == "email" and entry.what == "created" for entry in read_timeline(order=order))


def test_a_months_whole_life(archive_folder, settings):
    settings.WARM_DAYS = {"email_notifications": 10_000}
    month = make_partition(EmailNotification, back=26)
    with connection.cursor() as cursor:
        cursor.execute(FILL, [EMAILS, month.since])
        cursor.execute(f"ANALYZE {month.name}")
    order = order_in(month)
    assert emails_of(order) == 3

    with timed("detach"):
        assert roll()[1] == ["detaching", "detached", "recorded"]
    with timed("timeline of a warm month"):
        assert emails_of(order) == 3
    with timed("export from a warm month"):
        assert len(export_person(email=ANN, report=Steps())["email_notifications"]) == 3

    settings.WARM_DAYS = {"email_notifications": 730}
    with timed("write, read back and compare"):
        assert roll()[1] == ["cold file written", "archived"]
    age_records(7)
    with timed("compare again and drop"):
        assert roll()[1] == ["compared", "dropped", "drop recorded"]
    assert month.name not in states() and emails_of(order) == 0
    record = DetachedPartition.objects.get()
    print(f"{record.manifest['csv_bytes']} bytes of CSV, {record.manifest['file_bytes']} in the file")
    with timed("export from a cold month"):
        assert len(export_person(email=ANN, report=Steps())["email_notifications"]) == 3

    with timed("erasure"):
        assert erase_person(email=ANN, report=Steps(), force=True).cold_files == [month.name]
    Erasure.objects.update(requested_at=Now() - dt.timedelta(days=31))
    with timed("next month's rollover, which rewrites the file"):
        assert roll()[1] == ["cold file rewritten"]
    assert Erasure.objects.get().cold_files == [] and len(list(archive_folder.rglob("*.zst"))) == 1
    assert export_person(email=ANN, report=Steps())["email_notifications"] == []

    with timed("restore"):
        call_command("partitions", "restore", month.name)
    assert count(f"{month.name}_restored") == EMAILS + 4
    assert grep(ANN) == [] and grep(BOB) == [f"{month.name}_restored"]
    call_command("partitions", "drop", f"{month.name}_restored")
    assert not has_table(name=f"{month.name}_restored", using="default")

    DetachedPartition.objects.update(until=Now() - dt.timedelta(days=366 * settings.ARCHIVE_YEARS))
    assert roll()[1] == ["cold file deleted"] and list(archive_folder.rglob("*.zst")) == []
