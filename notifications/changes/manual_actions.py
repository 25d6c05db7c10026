"""Resend, give up or withdraw e-mails, and say why a person may not do so now."""

from __future__ import annotations

import dataclasses
import datetime as dt
import uuid
from collections.abc import Iterable

from django.conf import settings
from django.db import transaction
from django.db.models.functions import Now
from django.utils.text import get_text_list

from notifications.changes.turns import wake_waiting
from notifications.log import EmailChange, log_changes
from notifications.models import CONTENT, EmailNotification
from notifications.states import errors
from notifications.states.transitions import RESEND, EndedBy, Status, Transition
from runtime.addresses import is_usable
from runtime.personal_data import ERASED_ADDRESS

#: The reason of a refusal for an id without a row.
NO_ROW = "it is not stored, or its month was archived"


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Why a person's request was refused for one row. `until` is set if a later request may succeed."""

    id: uuid.UUID
    reason: str
    until: dt.datetime | None = None

    @property
    def text(self) -> str:
        """The reason, and until when it holds: the next full minute, so that equal texts can be counted."""
        if self.until is None:
            return self.reason
        minute = self.until.astimezone(dt.UTC) + dt.timedelta(minutes=1) - dt.timedelta.resolution
        return f"{self.reason} until {minute:%Y-%m-%d %H:%M} UTC"


#: The values of the columns that `RESEND` writes.
_FRESH = {"retry_count": 0, "next_attempt_at": Now(), "resent_at": Now()}


def change(
    *, ids: Iterable[uuid.UUID], act: Transition, hide_address: bool = False
) -> tuple[list[EmailChange], list[Refusal]]:
    """Change and log the e-mails for which `why_not` allows the act. Return the changes and the refusals.

    A resent e-mail is `pending` and due with all its retries, and keeps its list of errors. `hide_address`
    keeps the address out of the log.
    """
    wanted = set(ids)
    changes: list[EmailChange] = []
    changed: list[EmailNotification] = []
    refusals: list[Refusal] = []
    with transaction.atomic():
        rows = EmailNotification.objects.filter(id__in=list(wanted)).defer(*CONTENT).annotate(now=Now())
        for row in rows.order_by("id").select_for_update():
            wanted.discard(row.id)
            refusal = why_not(row=row, act=act, now=row.now)  # type: ignore[attr-defined] # annotated
            if refusal is not None:
                refusals.append(refusal)
            else:
                was, row.status, row.ended_by = row.status, act.to, act.ended_by or ""
                changes.append(EmailChange.of(row, was=was))
                changed.append(row)
        if changes:
            EmailNotification.objects.filter(id__in=[change.id for change in changes]).update(
                status=act.to,
                ended_by=act.ended_by or "",
                updated_at=Now(),
                **{column: _FRESH[column] for column in act.columns},
            )
        log_changes(changes, hide_address=hide_address)
        wake_waiting(changed)
    return changes, refusals + [Refusal(id, NO_ROW) for id in sorted(wanted)]


def why_not(*, row: EmailNotification, act: Transition, now: dt.datetime) -> Refusal | None:
    """Return why the row must not change at the database's time `now`, or None if it may."""
    if row.status not in act.before:
        return Refusal(row.id, f"it is {row.status}, not {get_text_list([*map(str, act.before)], 'or')}")
    if act is RESEND and row.recipient_email == ERASED_ADDRESS:
        return Refusal(row.id, "its data was erased")
    if act is RESEND and row.ended_by == EndedBy.TRIAL:
        return Refusal(row.id, f"it is {row.last_error}")
    if act is RESEND and not is_usable(row.recipient_email):
        return Refusal(row.id, "it has no usable address: send a copy to a corrected one")
    until = held_until(row) if act.has_to_wait else None
    if until is None or until <= now:
        return None
    reason = "its last attempt may have been accepted, so it is held for the provider's evidence"
    return Refusal(row.id, reason, until=until)


def held_until(row: EmailNotification) -> dt.datetime | None:
    """Return the end of the hold, or None if the e-mail is not held.

    A hold ends `AMBIGUOUS_HOLD_SECONDS` after the ambiguous attempt. If that was the newest attempt of a
    `failed` e-mail, the hold lasts at least until the next one, which screening postpones while no process
    takes webhooks.
    """
    doubt = errors.last_doubt(row.errors, row.resent_at)
    if doubt is None or row.status not in (Status.PENDING, Status.FAILED, Status.DEAD_LETTERED):
        return None
    until = doubt.tried_at + dt.timedelta(seconds=settings.AMBIGUOUS_HOLD_SECONDS)
    newest = errors.time_of(row.errors[-1]) == doubt.tried_at
    return max(until, row.next_attempt_at) if newest and row.status == Status.FAILED else until
