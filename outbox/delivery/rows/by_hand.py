"""Decide what a person may do with a row, and when. Lists, pages, jobs, commands, and the API ask."""

from __future__ import annotations

import dataclasses
import datetime as dt

from django.conf import settings
from django.utils.text import get_text_list

from outbox.delivery.rows import attempts
from outbox.delivery.rows.deliverable import Deliverable
from outbox.delivery.rows.outcomes import DUE_STATES, Status
from outbox.delivery.rows.settlements import Refusal


@dataclasses.dataclass(frozen=True, slots=True)
class Act:
    """A change of rows in one of the `states` to the state `to`. `has_to_wait`: not while the row is held."""

    states: tuple[Status, ...]
    to: Status
    has_to_wait: bool = True


RESEND = Act((Status.DEAD_LETTERED, Status.FAILED, Status.DISCARDED, Status.SUPPRESSED), Status.PENDING)
DISCARD = Act((Status.DEAD_LETTERED, Status.FAILED), Status.DISCARDED)
#: Because the person knows that the customer has the e-mail. This is evidence, so no row waits for another.
MARK_SENT = Act((*DUE_STATES, Status.DEAD_LETTERED), Status.SENT, has_to_wait=False)
#: For an erasure, which must not wait for a provider's evidence.
WITHDRAW = Act((*DUE_STATES, Status.DEAD_LETTERED), Status.DISCARDED, has_to_wait=False)


def why_not(*, row: Deliverable, act: Act, now: dt.datetime) -> Refusal | None:
    """Return why the row must not change at the database's time `now`, or None if it may."""
    if row.status not in act.states:
        return Refusal(row.id, f"it is {row.status}, not {get_text_list([*map(str, act.states)], 'or')}")
    until = held_until(row) if act.has_to_wait else None
    if until is None or until <= now:
        return None
    reason = "its last attempt may have been accepted, so it is held for the provider's evidence"
    return Refusal(row.id, reason, until=until)


def held_until(row: Deliverable) -> dt.datetime | None:
    """Return until when a row is held for evidence of an ambiguous attempt, or None without such an attempt.

    That is `AMBIGUOUS_HOLD_SECONDS` after the attempt. If it was the newest attempt of a `failed` row, the
    row is held at least until its next attempt, which screening postpones while no process takes webhooks.
    """
    doubt = attempts.last_doubt(row.errors, row.resent_at)
    if doubt is None or row.status not in (Status.FAILED, Status.DEAD_LETTERED):
        return None
    until = doubt.tried_at + dt.timedelta(seconds=settings.AMBIGUOUS_HOLD_SECONDS)
    newest = attempts.time_of(row.errors[-1]) == doubt.tried_at
    return max(until, row.next_attempt_at) if newest and row.status == Status.FAILED else until
