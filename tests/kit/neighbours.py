"""Attempts around failures, recorded without waiting."""

from __future__ import annotations

import datetime as dt
import time

from django.db.models.functions import Now

from notifications.delivery import process
from notifications.models import EmailNotification
from outbox.database.ids import new_id
from outbox.delivery.gate.neighbours import EACH_SIDE

#: How long ago an e-mail's last attempt was, and the time between its attempts, in seconds.
AGO, APART = 10, 20


def due_now() -> None:
    """Make every waiting e-mail due."""
    EmailNotification.objects.filter(status__in=["pending", "failed"]).update(
        next_attempt_at=Now() - dt.timedelta(seconds=1)
    )


def let_others_through(*, provider: str = "sendgrid") -> None:
    """Spread the failures over the past, record others' first attempts around them, and make all due."""
    most = 0
    for mail in EmailNotification.objects.filter(status="failed").exclude(errors=[]):
        times = sorted({entry["at"] for entry in mail.errors}, reverse=True)
        moved = {
            at: dt.datetime.now(dt.UTC) - dt.timedelta(seconds=AGO + APART * number)
            for number, at in enumerate(times)
        }
        for entry in mail.errors:
            entry["at"] = moved[entry["at"]].isoformat()
        mail.save(update_fields=["errors"])
        most = max(most, len(times))
    for number in range(most):
        accept_around(ago=AGO + APART * number, provider=provider)
    due_now()


def accept_around(*, ago: float, provider: str = "sendgrid", each_side: int = EACH_SIDE) -> None:
    """Record accepted first attempts of other e-mails shortly before and after a moment in the past."""
    for seconds in (ago + 2.5, ago - 2.5):
        for _ in range(each_side):
            process.current().neighbours.record(
                provider=provider, id=new_id(), is_accepted=True, ended_at=time.monotonic() - seconds
            )
