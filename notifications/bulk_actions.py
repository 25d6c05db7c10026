"""What can be done to any number of e-mails in the background: resend, give up, mark as sent."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence

from notifications import filters, services
from notifications.models import EmailNotification
from notifications.restored import mark_sent
from outbox.bulk import BulkAction, Result, register
from outbox.delivery.changes import Change, Refusal

Service = Callable[..., tuple[list[Change], list[Refusal]]]


def _changes(service: Service, done: str) -> Callable[[Sequence[uuid.UUID]], Result]:
    def change(ids: Sequence[uuid.UUID]) -> Result:
        changes, refusals = service(ids=ids)
        lines = [(change.row.pk, f"{done} (was {change.was}).") for change in changes]
        return Result(lines, Counter(refusal.reason for refusal in refusals))

    return change


RESEND = BulkAction(
    name="notifications.resend",
    title="Resend",
    model=EmailNotification,
    permission="notifications.resend_emailnotification",
    rows=filters.rows_at,
    change=_changes(services.resend, "Resent"),
    describe=filters.describe,
)
GIVE_UP = BulkAction(
    name="notifications.give_up",
    title="Give up",
    model=EmailNotification,
    permission="notifications.discard_emailnotification",
    rows=filters.rows_at,
    change=_changes(services.give_up, "Given up"),
    describe=filters.describe,
)
MARK_SENT = BulkAction(
    name="notifications.mark_sent",
    title="Mark as sent",
    model=EmailNotification,
    permission="notifications.discard_emailnotification",
    rows=filters.rows_at,
    change=_changes(mark_sent, "Marked as sent"),
    describe=filters.describe,
)
for one in (RESEND, GIVE_UP, MARK_SENT):
    register(one)
