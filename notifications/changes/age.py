"""Leave an e-mail to a person that has waited for too long: its news may be wrong by now.

Its age counts from the moment when it could first be sent: when it was written, got an address, or was resent
by a person. The time before the last end of a pause of the delivery does not count, and a restore ends with
such a pause.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
from typing import NamedTuple

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.db.models import DateTimeField, Exists
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now
from django.utils import timezone

from notifications.changes.manual_actions import why_not
from notifications.changes.settle import settle_locked
from notifications.log import EmailChange
from notifications.models import CONTENT, WAITS_SINCE, EmailNotification
from notifications.states.claimed import Claimed
from notifications.states.errors import ErrorEntry
from notifications.states.outcomes import Outcome, Verdict
from notifications.states.transitions import SET_ASIDE_OLD, EndedBy, Status, Withheld, list_in_sql
from runtime.database.postgres.cursor import Prepared
from runtime.models import Heartbeat, Pause

#: How many due e-mails a sweep reads, and how many it changes in one transaction.
SWEEP_ROWS, BATCH = 10_000, 300
# No index has the ages: each e-mail would pay for it, and few ever grow old. The id tells rows apart that are
# due at the same time.
_READ = Prepared(
    f"""
    WITH page AS MATERIALIZED (
        SELECT id, next_attempt_at, {WAITS_SINCE} <= statement_timestamp() - %(age)s AS is_old
        FROM email_notifications
        WHERE status IN ({list_in_sql(SET_ASIDE_OLD.before)})
          AND next_attempt_at >= %(due_at)s AND (next_attempt_at, id) > (%(due_at)s, %(id)s)
          AND NOT EXISTS (SELECT FROM pauses WHERE part = 'delivery')
        ORDER BY next_attempt_at, id LIMIT %(limit)s
    )
    SELECT ARRAY(SELECT id FROM page WHERE is_old ORDER BY id), (SELECT count(*) FROM page),
        next_attempt_at, id
    FROM page ORDER BY next_attempt_at DESC, id DESC LIMIT 1
    """  # noqa: S608 - only constants are inserted
)


class Place(NamedTuple):
    """A place in the queue of due e-mails."""

    due_at: dt.datetime
    id: uuid.UUID


#: Before the first e-mail.
START = Place(dt.datetime.min.replace(tzinfo=dt.UTC), uuid.UUID(int=0))


def max_age() -> dt.timedelta:
    """Return for how long an e-mail may wait."""
    return dt.timedelta(hours=settings.EMAIL_MAX_AGE_HOURS)


def describe_old_news(at: dt.datetime) -> Withheld | None:
    """Return the state of a new e-mail about a change at this time, if that is too long ago to be sent."""
    waited = timezone.now() - at
    if waited < max_age():
        return None
    words = f"too old: its change came {_say(waited)} late"
    return Withheld(Status.DEAD_LETTERED, EndedBy.AGE, words)


def sweep(*, after: Place) -> tuple[list[EmailChange], Place]:
    """Make dead letters of the e-mails that are too old, among the next `SWEEP_ROWS` of the queue.

    Return the changes, and where the next sweep has to begin. Leave out e-mails that are held, or that
    somebody else changes right now, and all while the delivery is paused.
    """
    values = {"age": max_age(), "limit": SWEEP_ROWS, **after._asdict()}
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.execute(_READ, values)
        page = cursor.fetchone()
    if page is None:
        return [], START
    old, count, due_at, id = page
    changes: list[EmailChange] = []
    for first in range(0, len(old), BATCH):
        changes += _set_aside(old[first : first + BATCH])
    return changes, Place(due_at, id) if count == SWEEP_ROWS else START


def _set_aside(ids: Sequence[uuid.UUID]) -> list[EmailChange]:
    waits_since = RawSQL(WAITS_SINCE, [], output_field=DateTimeField())  # noqa: S611 - ours
    rows = EmailNotification.objects.filter(
        ~Exists(Pause.objects.filter(part=Pause.Part.DELIVERY)),
        id__in=ids,
        status__in=SET_ASIDE_OLD.before,
    )
    rows = rows.annotate(now=Now(), waits_since=waits_since).filter(waits_since__lte=Now() - max_age())
    with transaction.atomic():
        ended = []
        for row in rows.defer(*CONTENT).order_by("id").select_for_update(skip_locked=True):
            now, since = row.now, row.waits_since  # type: ignore[attr-defined] # annotated
            if why_not(row=row, act=SET_ASIDE_OLD, now=now) is None:
                ended.append((row, _too_old(row.errors, waited=now - since)))
        return settle_locked(ended)


def find_too_old(emails: Sequence[Claimed]) -> dict[uuid.UUID, Outcome]:
    """Return the outcomes of the claimed e-mails that no sweep has seen in time."""
    old = [email for email in emails if email.claimed_at - email.waits_since >= max_age()]
    if not old:
        return {}
    beats = Heartbeat.objects.filter(name=Heartbeat.DELIVERY_RESUMED)
    resumed_at = beats.values_list("beat_at", flat=True).first()
    waited = {email: email.claimed_at - max(filter(None, (email.waits_since, resumed_at))) for email in old}
    return {
        email.id: _too_old(email.errors, waited=time) for email, time in waited.items() if time >= max_age()
    }


def _too_old(errors: Sequence[ErrorEntry], *, waited: dt.timedelta) -> Outcome:
    """Return the outcome of an e-mail. Its words say for how long it waited, and for what."""
    reason = "a provider"
    if errors:
        newest = errors[-1]
        reason = f"{newest.get('provider') or reason} ({newest.get('text', '')})"
    return Outcome(
        Verdict.TOO_OLD,
        text=f"too old: it waited {_say(waited)} for {reason}",
    )


def _say(waited: dt.timedelta) -> str:
    hours = int(waited.total_seconds() // 3600)
    number, unit = (hours // 24, "day") if hours >= 48 else (hours, "hour")
    return f"{number} {unit}{'s' * (number != 1)}"
