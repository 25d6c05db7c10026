"""Insert an e-mail, at most one for each order, event and version of the order.

No constraint says so, because a unique index of a partitioned table must contain the partition's key. The
order's row does: one statement makes a version of the order and inserts its e-mails, or makes neither. An
event of another system can come after that version. Then the statement inserts its e-mail only if there is
none, and updates the order's row, too.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from typing import NamedTuple, TypedDict

from notifications.states.transitions import Status
from runtime.database.statement import StatementPart, insert

_NEW = (("retry_count", "0"), ("errors", "'[]'"), ("provider", "''"), ("provider_message_id", "''"))
#: The end of a shop copy's idempotency key.
SHOP_ROLE = ":shop"
#: The statement's change has no row if another session changed the order after it was read. So of two changes
#: at the same moment, only a later statement of the second writes, and that one sees the e-mail of the first.
NONE_WITHIN = (
    "SELECT 1 {source} WHERE NOT EXISTS (SELECT FROM email_notifications"
    " WHERE order_id = %s AND event_type = %s AND created_at > statement_timestamp() - %s)"
)
#: The same is true of this.
NONE_OF_VERSION = (
    "SELECT 1 {source} WHERE NOT EXISTS (SELECT FROM email_notifications"
    " WHERE order_id = %s AND idempotency_key = %s)"
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
    profile: str
    from_email: str
    reply_to: str
    subject: str
    body: str
    body_text: str
    text_versions: list[str] | None
    max_retries: int
    correlation_id: str
    traceparent: str


class ShopCopy(NamedTuple):
    """The copy of a new e-mail for the shop. It is a row of its own, so each recipient has its own state."""

    id: uuid.UUID
    recipient_email: str


#: The columns that a shop copy has from the customer's e-mail.
_SHARED = (
    *("order_id", "event_type", "status", "last_error", "locale", "profile", "from_email", "reply_to"),
    *("subject", "body", "body_text", "text_versions", "max_retries", "correlation_id", "traceparent"),
    *(name for name, _ in _NEW),
)
#: Takes the customer's e-mail from the step before. The idempotency key names the recipient's role.
_SHOP_COPY = f"""
    INSERT INTO email_notifications (id, recipient_email, to_name, idempotency_key, shop_copy_of,
        customer_email, {", ".join(_SHARED)})
    SELECT %s, %s, '', (row).idempotency_key || '{SHOP_ROLE}', (row).id,
        (row).recipient_email, {", ".join(f"(row).{name}" for name in _SHARED)}
    {{source}} RETURNING 1
    """


def insert_email(
    email: NewEmail,
    *,
    version: int,
    interval: dt.timedelta | None = None,
    may_exist: bool = False,
    shop_copy: ShopCopy | None = None,
    on_commit: Callable[[], None],
) -> StatementPart:
    """Return a part of a statement that inserts the e-mail, and with `shop_copy` also that copy of it.

    Use it only in the statement that makes `version`, or with `may_exist` in one that changes the order. With
    `may_exist`, the part inserts nothing if the table has the e-mail of this event and version. With
    `interval`, it inserts nothing if the order has an e-mail about the same event that was written within
    that time of the database's clock.
    """
    key = _key(email["order_id"], email["event_type"], version)
    steps: list[str] = []
    values: list[object] = []
    if interval is not None:
        steps.append(NONE_WITHIN)
        values += [email["order_id"], email["event_type"], interval]
    if may_exist:
        steps.append(NONE_OF_VERSION)
        values += [email["order_id"], key]
    returning = "1" if shop_copy is None else "email_notifications AS row"
    row = insert("email_notifications", {**email, "idempotency_key": key}, fixed=_NEW, returning=returning)
    steps += row.steps
    values += row.values
    if shop_copy is not None:
        steps.append(_SHOP_COPY)
        values += [shop_copy.id, shop_copy.recipient_email]
    return StatementPart(tuple(steps), values, on_commit)


def insert_copy(
    email: NewEmail,
    *,
    of: uuid.UUID,
    shop_copy_of: uuid.UUID | None,
    customer_email: str,
    on_commit: Callable[[], None],
) -> StatementPart:
    """Return a part of a statement that inserts a copy of the e-mail `of`, with its own idempotency key.

    A copy of a shop copy has the last two columns of its original.
    """
    row = {
        **email,
        "idempotency_key": f"copy:{email['id']}",
        "resend_of": of,
        "shop_copy_of": shop_copy_of,
        "customer_email": customer_email,
    }
    return insert("email_notifications", row, fixed=_NEW, on_commit=on_commit)


def version_of(key: str) -> int | None:
    """Return the order's version in the idempotency key of an e-mail, or None for the key of a copy.

    A shop copy has the version of the customer's e-mail.
    """
    version = key.removesuffix(SHOP_ROLE).rpartition(":")[2]
    return int(version) if version.isdecimal() and not key.startswith("copy:") else None


def _key(order_id: uuid.UUID, event_type: str, version: int) -> str:
    return f"{order_id}:{event_type}:{version}"
