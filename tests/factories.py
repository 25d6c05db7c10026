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
