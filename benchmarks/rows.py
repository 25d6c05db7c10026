"""Rows made by the database itself: orders and e-mails by the thousand, as the shop would have written them.

Ids begin with their time, so `age` (days) decides in which partition an e-mail lies.
"""

from __future__ import annotations

import uuid
from typing import Any

from benchmarks.mails import HTML, SUBJECT, TEXT

_ID = """(lpad(to_hex((extract(epoch FROM clock_timestamp() - {age}) * 1000)::bigint), 12, '0') || '7'
    || substr(md5(%(run)s || n), 1, 3) || '8' || substr(md5(%(run)s || n), 4, 15))::uuid"""

ORDERS = f"""
    INSERT INTO orders (id, status, version, user_id, email, name, locale, reference, items, total_amount,
        refunded_amount, currency, correlation_id)
    SELECT {_ID.format(age="interval '0'")}, 'pending', 1, gen_random_uuid(),
        'bench-' || n || '@example.com', 'Bench', 'en', 'B-' || n,
        '[{{"sku": "pen", "name": "Brass pen", "quantity": 1, "unit_amount": 4200}}]'::jsonb, 4200, 0, 'EUR',
        %(run)s
    FROM generate_series(1, %(count)s) AS n RETURNING id
"""

MAILS = f"""
    INSERT INTO email_notifications (id, status, retry_count, max_retries, next_attempt_at, last_error,
        errors, provider, provider_message_id, correlation_id, traceparent, created_at, sent_at, event_type,
        recipient_email, to_name, locale, subject, body, body_text, idempotency_key, order_id)
    SELECT {_ID.format(age="%(age)s * interval '1 day'")}, %(status)s::text, 0, 3,
        now() - %(age)s * interval '1 day' - interval '1 minute', '', '[]'::jsonb, '', '', %(run)s, '',
        now() - %(age)s * interval '1 day',
        CASE WHEN %(status)s::text = 'sent' THEN now() - %(age)s * interval '1 day' END, 'order.paid',
        'user' || n || '@example.com', 'User', 'en', %(subject)s, %(html)s, %(text)s, %(run)s || n,
        gen_random_uuid()
    FROM generate_series(1, %(count)s) AS n
"""


def place(cursor: Any, count: int) -> list[uuid.UUID]:
    """Place orders and return their ids."""
    cursor.execute(ORDERS, {"run": uuid.uuid4().hex[:8], "count": count})
    return [id for (id,) in cursor.fetchall()]


def mails(cursor: Any, count: int, *, status: str = "pending", age: float = 0.0, small: bool = False) -> None:
    """Write e-mails, `age` days old; small ones have no bodies to speak of."""
    values = {"run": uuid.uuid4().hex[:8], "count": count, "status": status, "age": age, "subject": SUBJECT}
    cursor.execute(MAILS, values | ({"html": "-", "text": "-"} if small else {"html": HTML, "text": TEXT}))
