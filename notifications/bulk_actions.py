"""The bulk actions of e-mails: resend, give up, mark as sent."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence

from notifications import filters, services
from notifications.by_hand import Refusal
from notifications.models import EmailNotification
from notifications.restored import mark_sent
from runtime.bulk_jobs import BatchResult, BulkAction, register

Service = Callable[..., tuple[list[EmailNotification], list[Refusal]]]


def _action(name: str, title: str, permission: str, service: Service, done: str) -> BulkAction:
    def change(ids: Sequence[uuid.UUID]) -> BatchResult:
        changes, refusals = service(ids=ids)
        lines = [(mail.pk, f"{done} (was {mail.was}).") for mail in changes]
        return BatchResult(lines, Counter(refusal.text for refusal in refusals))

    action = BulkAction(
        name=name,
        title=title,
        model=EmailNotification,
        permission=permission,
        rows=filters.rows_at,
        change=change,
        describe=filters.describe,
    )
    register(action)
    return action


_DISCARD = "notifications.discard_emailnotification"
RESEND = _action(
    "notifications.resend", "Resend", "notifications.resend_emailnotification", services.resend, "Resent"
)
GIVE_UP = _action("notifications.give_up", "Give up", _DISCARD, services.give_up, "Given up")
MARK_SENT = _action("notifications.mark_sent", "Mark as sent", _DISCARD, mark_sent, "Marked as sent")
