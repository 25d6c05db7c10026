"""Let PostgreSQL generate thousands of orders and e-mails like those of a shop."""

from __future__ import annotations

import uuid
from typing import Any

SUBJECT = "We have received your payment for order A-1001"
_LINE = "Thank you. On 21 November 2026 we received your payment of €42.00 for your order A-1001. "
#: Together 4 kB, the size of an order's e-mail.
TEXT = _LINE * 8
HTML = "<html><body>" + f"<p>{_LINE}</p>" * 33 + "</body></html>"

_ID = """(lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7'
    || substr(md5(%(run)s || n), 1, 3) || '8' || substr(md5(%(run)s || n), 4, 15))::uuid"""

_ORDERS = f"""
    INSERT INTO orders (id, status, version, user_id, email, name, locale, reference, items, total_amount,
        refunded_amount, currency, correlation_id)
    SELECT {_ID}, 'pending', 1, gen_random_uuid(), 'bench-' || n || '@example.com', 'Bench', 'en', 'B-' || n,
        '[{{"sku": "pen", "name": "Brass pen", "quantity": 1, "unit_amount": 4200}}]'::jsonb, 4200, 0, 'EUR',
        %(run)s
    FROM generate_series(1, %(count)s) AS n RETURNING id
"""

_MAILS = f"""
    INSERT INTO email_notifications (id, status, retry_count, max_retries, next_attempt_at, last_error,
        errors, provider, provider_message_id, correlation_id, traceparent, created_at, event_type,
        recipient_email, to_name, from_email, locale, subject, body, body_text, idempotency_key, order_id)
    SELECT {_ID}, 'pending', 0, 3, now() - interval '1 minute', '', '[]'::jsonb, '', '', %(run)s, '', now(),
        'order.paid', 'user' || n || '@example.com', 'User', 'orders@example.com', 'en', %(subject)s,
        %(html)s, %(text)s, %(run)s || n, gen_random_uuid()
    FROM generate_series(1, %(count)s) AS n
"""


def place(cursor: Any, count: int) -> list[uuid.UUID]:
    """Place orders and return their ids."""
    cursor.execute(_ORDERS, {"run": uuid.uuid4().hex[:8], "count": count})
    return [id for (id,) in cursor.fetchall()]


def queue_mails(connection: Any, count: int) -> None:
    """Insert due e-mails."""
    values = {"run": uuid.uuid4().hex[:8], "count": count, "subject": SUBJECT, "html": HTML, "text": TEXT}
    connection.execute(_MAILS, values)
