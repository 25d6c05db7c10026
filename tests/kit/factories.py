"""Insert rows for tests, in the past if age matters. Arguments override every default."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib.auth.models import Permission, User
from django.db import connection
from django.db.models.functions import Now
from django.test import Client

from notifications.models import EmailNotification
from orders.models import Order
from outbox.database.ids import new_id
from outbox.delivery.rows.outcomes import Status


def make_order(**fields: Any) -> Order:
    """Place an order as the API does."""
    values: dict[str, Any] = {
        "user_id": uuid.uuid4(),
        "email": "alice@example.com",
        "name": "Alice",
        "total_amount": 12_345,
        "reference": "R-1",
    }
    return Order.objects.create(**values | fields)


def make_orders(count: int, *, owner: str) -> None:
    """Insert many orders in one statement, a second apart, the newest now, and analyze the table.

    `owner` is "own", "external" (its ids contain no time) or "mixed". Every 40th order has the status
    `refunded`, and `User7@example.com` and user 7 have every 50th. The reference `R-7` has twenty orders.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO orders (id, source, status, version, user_id, email, name, locale, reference, items,
                total_amount, refunded_amount, currency, correlation_id, created_at, updated_at)
            SELECT
                CASE WHEN source <> '' THEN gen_random_uuid() ELSE
                    (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0')
                        || '7' || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid
                END,
                source,
                CASE WHEN n %% 40 = 0 THEN 'refunded' ELSE 'completed' END, 1,
                lpad((n %% 50)::text, 32, '0')::uuid, 'User' || n %% 50 || '@example.com', '', 'en',
                CASE WHEN n %% (%(count)s / 20) = 7 THEN 'R-7' ELSE 'S-' || n END, '[]', 1,
                CASE WHEN n %% 40 = 0 THEN 1 ELSE 0 END, 'USD', '', at, at
            FROM generate_series(1, %(count)s) AS n,
                LATERAL (SELECT now() - (%(count)s - n) * interval '1 second' AS at,
                    CASE WHEN %(owner)s = 'own' OR %(owner)s = 'mixed' AND n %% 2 = 0 THEN ''
                        ELSE 'shop-a' END AS source) AS made
            """,
            {"count": count, "owner": owner},
        )
        cursor.execute("ANALYZE orders")


def make_mail(**fields: Any) -> EmailNotification:
    """Insert a due e-mail. `status` also sets the columns that the table's constraints require."""
    values: dict[str, Any] = {
        "order_id": new_id(),
        "event_type": "order.paid",
        "recipient_email": "alice@example.com",
        "to_name": "Alice",
        "subject": "Your order",
        "body": "<p>Paid.</p>",
        "body_text": "Paid.",
        "idempotency_key": str(new_id()),
        "correlation_id": "test",
    }
    status = fields.get("status", Status.PENDING)
    if status == Status.SENT:
        values["sent_at"] = Now()
    if status == Status.PROCESSING:
        values |= {"claimed_at": Now(), "claim_token": uuid.uuid4()}
    mail = EmailNotification.objects.create(**values | fields)
    mail.refresh_from_db()
    return mail


def make_mails(count: int, *, status: str = "pending", age: float = 1.0) -> None:
    """Insert many e-mails in one statement, due `age` seconds ago, with ids of now."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO email_notifications (id, status, retry_count, max_retries, next_attempt_at,
                last_error, errors, provider, provider_message_id, correlation_id, traceparent, sent_at,
                event_type, recipient_email, to_name, locale, subject, body, body_text,
                idempotency_key, order_id)
            SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0')
                    || '7' || substr(md5(n::text || random()), 1, 3)
                    || '8' || substr(md5(random()::text), 1, 15))::uuid,
                %(status)s::text, 0, 3, now() - %(age)s * interval '1 second', '', '[]', '', '', 'test', '',
                CASE WHEN %(status)s::text = 'sent' THEN now() END, 'order.paid',
                'user' || n || '@example.com', 'User', 'en', 'Your order', '<p>Paid.</p>', 'Paid.', n::text,
                gen_random_uuid()
            FROM generate_series(1, %(count)s) AS n
            """,
            {"status": status, "age": age, "count": count},
        )


def statuses() -> dict[str, int]:
    """Return the number of e-mails in each status."""
    counts: dict[str, int] = {}
    for status in EmailNotification.objects.values_list("status", flat=True):
        counts[status] = counts.get(status, 0) + 1
    return counts


def staff_client(*permissions: str, name: str = "staff") -> Client:
    """Log in a staff user with only these permissions."""
    user = User.objects.create_user(name, password="x", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client
