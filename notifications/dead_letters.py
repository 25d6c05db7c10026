"""Resend every dead letter at once, for a command that names none."""

from __future__ import annotations

import uuid

from notifications.models import EmailNotification
from notifications.services import resend
from outbox.core.transactions import require_transaction
from outbox.delivery.outcomes import SET_ASIDE

CHUNK = 500


def resend_dead_letters() -> tuple[int, int]:
    """Resend all dead letters in the caller's transaction. Return the numbers of changes and of refusals.

    Leave those that a restore of the database made dead letters: a provider may have accepted them, so a
    person decides. A command from before the restore may be delivered again.
    """
    require_transaction("a resend")
    changed, refused, last = 0, 0, uuid.UUID(int=0)
    while True:
        rows = EmailNotification.objects.dead().exclude(last_error__startswith=f"{SET_ASIDE} ")
        ids = list(rows.filter(id__gt=last).order_by("id").values_list("id", flat=True)[:CHUNK])
        if not ids:
            return changed, refused
        changes, refusals = resend(ids=ids)
        changed, refused, last = changed + len(changes), refused + len(refusals), ids[-1]
