"""Insert an e-mail, at most one for each order, event and version of the order.

No constraint says so, because a unique index of a partitioned table must contain the partition's key. The
order's row does: one statement makes a version of the order and inserts its e-mails, or makes neither. An
event of another system can come after that version. Its handler locks the order, and asks `has_email`.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from typing import TypedDict

from django.db import connection

from notifications.states.transitions import Status
from runtime.database.statement import StatementPart, insert

_NEW = (("retry_count", "0"), ("errors", "'[]'"), ("provider", "''"), ("provider_message_id", "''"))
#: An earlier statement has locked the order, so of two changes at the same moment the second sees the e-mail
#: of the first. A read in the statement that waits for the lock would not see it.
NONE_WITHIN = (
    "SELECT 1 {source} WHERE NOT EXISTS (SELECT FROM email_notifications"
    " WHERE order_id = %s AND event_type = %s AND created_at > statement_timestamp() - %s)"
)


class NewEmail(TypedDict):
    """The columns in which new e-mails differ."""

    id: uuid.UUID
    order_id: uuid.UUID
    event_type: str
    status: Status
    last_error: str
    recipient_email: str
    to_name: str
    locale: str
    subject: str
    body: str
    body_text: str
    max_retries: int
    correlation_id: str
    traceparent: str


def insert_email(
    email: NewEmail, *, version: int, interval: dt.timedelta | None = None, on_commit: Callable[[], None]
) -> StatementPart:
    """Return a part of a statement that inserts the e-mail.

    Use it only in the transaction that makes `version`, or under the order's lock after `has_email` returned
    False. With `interval`, the part inserts nothing if the order has an e-mail about the same event that was
    written within that time of the database's clock.
    """
    steps: tuple[str, ...] = ()
    values: list[object] = []
    if interval is not None:
        steps, values = (NONE_WITHIN,), [email["order_id"], email["event_type"], interval]
    key = _key(email["order_id"], email["event_type"], version)
    row = insert("email_notifications", {**email, "idempotency_key": key}, fixed=_NEW)
    return StatementPart((*steps, *row.steps), [*values, *row.values], on_commit)


def insert_copy(email: NewEmail, *, of: uuid.UUID, on_commit: Callable[[], None]) -> StatementPart:
    """Return a part of a statement that inserts a copy of the e-mail `of`, with its own idempotency key."""
    row = {**email, "idempotency_key": f"copy:{email['id']}", "resend_of": of}
    return insert("email_notifications", row, fixed=_NEW, on_commit=on_commit)


def has_email(*, order_id: uuid.UUID, event_type: str, version: int) -> bool:
    """Tell whether the table has the e-mail. The caller holds the order's lock until it has inserted it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM email_notifications WHERE order_id = %s AND idempotency_key = %s)",
            [order_id, _key(order_id, event_type, version)],
        )
        found: bool = cursor.fetchone()[0]
        return found


def version_of(key: str) -> int | None:
    """Return the order's version in the idempotency key of an e-mail, or None for the key of a copy."""
    version = key.rpartition(":")[2]
    return int(version) if version.isdecimal() and not key.startswith("copy:") else None


def _key(order_id: uuid.UUID, event_type: str, version: int) -> str:
    return f"{order_id}:{event_type}:{version}"
