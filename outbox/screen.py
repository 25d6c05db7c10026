"""Decide which claimed e-mails not to send now: suppressed, held, too old, out of turn, out of retries."""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections import defaultdict
from collections.abc import Sequence

from django.conf import settings
from django.db.models.functions import Now

from notifications.changes.age import find_too_old
from notifications.changes.turns import find_out_of_turn
from notifications.states.claimed import Claimed
from notifications.states.errors import entries_since, last_doubt, time_of
from notifications.states.outcomes import LEASE_EXPIRED, Outcome, Verdict
from notifications.suppressions import suppressed_among
from outbox.first_attempts import FirstAttempts
from runtime.models import Heartbeat
from web.heartbeat import ENDPOINT

#: Webhooks are in use if an event came within this time.
WEBHOOKS_IN_USE = dt.timedelta(days=7)
#: No e-mail is held for longer than this.
LONGEST_HOLD = dt.timedelta(days=1)


def screen(emails: Sequence[Claimed], *, first_attempts: FirstAttempts) -> dict[uuid.UUID, Outcome]:
    """Return the outcomes of claimed e-mails that must not be sent now.

    In the others, write the retries that their failures have used up into `retry_count`.

    Do not send:

    - an e-mail whose address is suppressed;
    - an e-mail that a provider may have accepted, while its webhook may still prove it;
    - an e-mail that has waited for too long;
    - an e-mail that an earlier one of its order precedes, or a later change has made old news;
    - an e-mail whose own failures used up all retries.
    """
    reasons = suppressed_among(emails)
    outcomes = {id: Outcome(Verdict.SUPPRESSED, text=f"not sent: {reason}") for id, reason in reasons.items()}
    outcomes |= _still_held([email for email in emails if email.id not in outcomes])
    outcomes |= find_too_old([email for email in emails if email.id not in outcomes])
    outcomes |= find_out_of_turn([email for email in emails if email.id not in outcomes])
    for email in emails:
        used = 0 if email.id in outcomes else count_used_retries(email, first_attempts)
        if used > email.max_retries:
            outcomes[email.id] = Outcome(Verdict.EXHAUSTED)
        else:
            email.retry_count = max(email.retry_count, used)
    return outcomes


def count_used_retries(email: Claimed, first_attempts: FirstAttempts) -> int:
    """Return how many retries the failures since the last resend use up.

    Return 0 until other e-mails prove that failures are the e-mail's own. Then lost workers count, too.
    """
    now = time.monotonic()
    ahead = email.claimed_at.timestamp() - now  # the database's clock; the claim was a moment ago
    failures: defaultdict[str, list[float]] = defaultdict(list)
    entries = entries_since(email.errors, email.resent_at)
    for entry in entries:
        if entry.get("judged") is False:
            failures[str(entry.get("provider", ""))].append(time_of(entry).timestamp() - ahead)
    own = [
        first_attempts.count_own_failures(provider=provider, at=at, now=now)
        for provider, at in failures.items()
    ]
    lost = sum(entry.get("code") == LEASE_EXPIRED for entry in entries)
    return max(own) + lost if any(own) else 0


def _still_held(emails: Sequence[Claimed]) -> dict[uuid.UUID, Outcome]:
    """Hold e-mails that may have been accepted.

    Time in which no process of ours received webhooks does not count toward the hold.
    """
    left: dict[uuid.UUID, float] = {}
    for email in emails:
        if doubt := last_doubt(email.errors, email.resent_at):
            passed = email.claimed_at - doubt.tried_at
            if passed < LONGEST_HOLD:
                left[email.id] = settings.AMBIGUOUS_HOLD_SECONDS - passed.total_seconds()
    if not left:
        return {}
    missing = _endpoint_missing()
    waits = {id: max(seconds, missing) for id, seconds in left.items()}
    return {id: Outcome(Verdict.HELD, wait_seconds=wait) for id, wait in waits.items() if wait > 0}


def _endpoint_missing() -> float:
    """Return the seconds for which the webhook endpoint must still be up; 0 if no provider uses it."""
    arrive = Heartbeat.objects.filter(name__startswith="webhook:", beat_at__gt=Now() - WEBHOOKS_IN_USE)
    if not arrive.exists():
        return 0.0
    up = Heartbeat.seconds_without_gap(name=ENDPOINT)
    hold = float(settings.AMBIGUOUS_HOLD_SECONDS)
    return hold if up is None else hold - up
