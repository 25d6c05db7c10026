"""The insert of an e-mail: at most one for each order, event and version of the order."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from django.db import connection

from outbox.core.statement import Part
from outbox.delivery.outcomes import Status

#: The key and, if it was free, the notification.
_INSERT_ONCE = (
    """
    INSERT INTO idempotency_keys (scope, key, request_hash, answer_body, answer_location, notification_id)
    SELECT 'email', %s, '', '', '', %s {source} ON CONFLICT DO NOTHING RETURNING 1
    """,
    """
    INSERT INTO email_notifications (id, order_id, event_type, status, last_error,
        recipient_email, to_name, locale, subject, body, body_text, idempotency_key, retry_count,
        max_retries, errors, provider, provider_message_id, correlation_id, traceparent)
    SELECT %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, 0, %s, '[]'::jsonb, '', '', %s, %s
    {source} RETURNING 1
    """,
)


def insert_once(
    *,
    id: uuid.UUID,
    order_id: uuid.UUID,
    event_type: str,
    version: int,
    status: Status,
    last_error: str,
    recipient_email: str,
    to_name: str,
    locale: str,
    subject: str,
    body: str,
    body_text: str,
    max_retries: int,
    correlation_id: str,
    traceparent: str,
    announce: Callable[[], None],
) -> Part:
    """Return the insert as a part of a statement. It inserts nothing if the e-mail exists."""
    key = _key(order_id, event_type, version)
    row = [
        id,
        order_id,
        event_type,
        str(status),
        last_error,
        recipient_email,
        to_name,
        locale,
        subject,
        body,
        body_text,
        key,
        str(max_retries),
        correlation_id,
        traceparent,
    ]
    return Part(_INSERT_ONCE, [key, id, *row], announce)


def inserted_before(*, order_id: uuid.UUID, event_type: str, version: int) -> uuid.UUID:
    """Return the id of the e-mail that `insert_once` found."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT notification_id FROM idempotency_keys WHERE scope = 'email' AND key = %s",
            [_key(order_id, event_type, version)],
        )
        id: uuid.UUID = cursor.fetchone()[0]
        return id


def email_exists(*, order_id: uuid.UUID, event_type: str, version: int) -> bool:
    """Tell whether the e-mail was inserted before, as long as its row is in the table.

    The key in `idempotency_keys` is forgotten sooner.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM email_notifications WHERE order_id = %s AND idempotency_key = %s)",
            [order_id, _key(order_id, event_type, version)],
        )
        found: bool = cursor.fetchone()[0]
        return found


def _key(order_id: uuid.UUID, event_type: str, version: int) -> str:
    return f"{order_id}:{event_type}:{version}"
