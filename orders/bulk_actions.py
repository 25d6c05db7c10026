"""The bulk action that renders e-mails again. The admin's list of e-mails finds it by its name."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence

from notifications import filters
from notifications.models import EmailNotification
from orders.render_again import render_again
from outbox.bulk import BatchResult, BulkAction, register


def _change(ids: Sequence[uuid.UUID]) -> BatchResult:
    done, refusals = render_again(ids=ids)
    lines = [(one.id, f"Rendered again as {one.copy_id} (was {one.was}).") for one in done]
    return BatchResult(lines, Counter(refusal.text for refusal in refusals))


RENDER_AGAIN = BulkAction(
    name="notifications.render_again",
    title="Render again",
    model=EmailNotification,
    permission="notifications.resend_emailnotification",
    rows=filters.rows_at,
    change=_change,
    describe=filters.describe,
)
register(RENDER_AGAIN)
