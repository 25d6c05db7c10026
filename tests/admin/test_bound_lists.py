"""A user who is bound to a small shop reads few rows: lists, files, searches, causes, and the first page."""

from __future__ import annotations

import os

import pytest
from django.db import connection

from runtime.database.parts import READ
from tests.kit.admin import MAILS, ORDERS, statements_of
from tests.kit.people import staff_client
from tests.kit.plans import emptied, plan_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey_url")]
#: The e-mails, of which 1 % are of shop-b, and the orders. Set MANY=1000000 to run it by hand with more.
MANY = int(os.environ.get("MANY", "20000"))
#: One statement writes so many of each.
PART = 50_000
CAUSES = f"{MAILS}causes/"
PAGES = (
    *("/admin/", CAUSES, ORDERS, f"{ORDERS}?status=completed", f"{ORDERS}?q=user7", f"{ORDERS}?q=s-1"),
    *(MAILS, f"{MAILS}?status=dead_lettered", f"{MAILS}?status=sent", f"{MAILS}?age=24h"),
    *(f"{MAILS}?q=user7", f"{MAILS}?q=user7@example.com", f"{MAILS}?q=s-1", f"{MAILS}csv/"),
    *("/admin/search/?q=user7", "/admin/search/?q=user7@example.com", "/admin/search/?q=s-1"),
    "/admin/notifications/suppression/",
)


def fill() -> None:
    """Write an order and an e-mail for each number, the newest last: 1 % of shop-b, half of own orders."""
    for table in ("orders", "email_notifications"):
        emptied(table)
    with connection.cursor() as cursor:
        for first in range(1, MANY, PART):
            part = {"first": first, "last": min(first + PART - 1, MANY), "many": MANY}
            cursor.execute(
                """
                INSERT INTO orders (id, source, status, version, user_id, email, name, locale, reference,
                    items, total_amount, refunded_amount, currency, correlation_id, created_at, updated_at)
                SELECT gen_random_uuid(),
                    CASE WHEN n %% 100 = 0 THEN 'shop-b' WHEN n %% 2 = 0 THEN 'shop-a' ELSE '' END,
                    'completed', 1, lpad((n %% 500)::text, 32, '0')::uuid,
                    'User' || n %% 500 || '@example.com', '', 'en', 'S-' || n, '[]', 1, 0, 'USD', 'c' || n,
                    now() - (%(many)s - n) * interval '1 s', now()
                FROM generate_series(%(first)s::int, %(last)s::int) AS n
                """,
                part,
            )
            # About every 20th is a dead letter, of ten causes.
            cursor.execute(
                """
                INSERT INTO email_notifications (id, status, ended_by, retry_count, max_retries, last_error,
                    errors, provider, provider_message_id, correlation_id, traceparent, event_type,
                    recipient_email, to_name, locale, subject, body, body_text, idempotency_key, order_id,
                    sent_at, source)
                SELECT uuidv7(), CASE WHEN is_dead THEN 'dead_lettered' ELSE 'sent' END,
                    CASE WHEN is_dead THEN 'provider' ELSE '' END, 0, 3,
                    CASE WHEN is_dead THEN 'refused because ' || chr(97 + (n %% 10)::int) ELSE '' END, '[]',
                    'sendgrid', '', 'c', '', 'order.paid', email, '', 'en', 'Paid', '<p>Paid</p>', 'Paid',
                    id::text, id, CASE WHEN NOT is_dead THEN now() END, source
                FROM (SELECT *, abs(hashint8(n)) %% 20 = 0 AS is_dead
                    FROM (SELECT *, substr(correlation_id, 2)::bigint AS n FROM orders
                        WHERE created_at >= now() - (%(many)s - %(first)s) * interval '1 s') AS numbered
                    ) AS made
                ORDER BY created_at
                """,
                part,
            )
        cursor.execute(
            """
            INSERT INTO suppressions (id, address_hash, reason, provider, notification_id, source)
            SELECT gen_random_uuid(), id::text, 'hard_bounce', 'smtp', id, source FROM email_notifications
            WHERE status = 'dead_lettered'
            """
        )
        cursor.execute("ANALYZE orders, email_notifications, suppressions")


def test_a_user_of_a_small_shop_reads_few_rows_and_pages():
    fill()
    client = staff_client(
        *("view_order", "view_emailnotification", "view_suppression", "resend_emailnotification"),
        shops=["shop-b"],
    )
    most: dict[str, tuple[int, int]] = {}
    too_many = []
    for path in PAGES:
        b"".join(client.get(path))  # fills caches, and reads a file to its end
        for text in statements_of(client, path):
            if text.strip().startswith(("SELECT", "(SELECT")):
                plan = plan_of(text)
                before = most.get(path, (0, 0))
                most[path] = max(before[0], plan.visited), max(before[1], plan.buffers)
                # A search by the beginning of a text reads rows of all shops, up to a limit for each index.
                # A count stops at as many rows.
                if plan.visited > (READ if "q=" in path or "COUNT(" in text else 1000):
                    too_many.append((path, plan.visited, text))
    print(*(f"{path}: {rows:,} rows, {pages:,} pages" for path, (rows, pages) in most.items()), sep="\n")
    assert too_many == []
