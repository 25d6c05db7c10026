"""Write the outcomes of attempts into the table. Each verb logs the changes that it returns.

An acceptance is a fact that anyone may report: it makes every unsent e-mail `sent`. Any other outcome counts
only under the token of the current claim. A statement that changes several rows locks them first, in the
order of their ids.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import structlog
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections, transaction
from django.db.models import Q, QuerySet

from notifications.changes.turns import look_again, wake_waiting
from notifications.changes.whose_failure import say_whose
from notifications.events import TOPICS, end_event
from notifications.log import EmailChange, log_changes
from notifications.models import CONTENT, EmailNotification
from notifications.states.claimed import Claimed
from notifications.states.errors import count_attempts, count_lost, entry_of
from notifications.states.outcomes import (
    MESSAGE_ID_LIMIT,
    UNTRIED,
    Decision,
    Outcome,
    Verdict,
    current_policy,
    decide_status,
)
from notifications.states.transitions import (
    ACCEPT,
    DUE_STATES,
    ENDED,
    SET_ASIDE_REPLACED,
    SETTLE,
    TAKE_BACK,
    EndedBy,
    Status,
)
from runtime.database.postgres.cursor import Prepared
from runtime.database.save import save_together
from runtime.texts import make_storable

log = structlog.get_logger(__name__)

#: How many dead letters a transaction takes back at most.
TAKE_BACK_ROWS = 500
# Content and times are left out: reading them doubles the query's time.
_LOCK = Prepared(
    """
    SELECT id, status, claim_token, retry_count, max_retries, errors, correlation_id, traceparent, resent_at,
        order_id, event_type, recipient_email, shop_copy_of, is_awaited, source
    FROM email_notifications WHERE id = ANY(%s) ORDER BY id FOR UPDATE
    """
)
#: The new values of a row. `wait` is in seconds, or null if the row keeps its place. `failures` are entries
#: without time, to append to the row's errors.
_VALUES = (
    "id uuid, status text, ended_by text, retry_count int, wait float8, failures jsonb, untried bool,"
    " error text, provider text, message_id text"
)
# The statement gets the ids twice. The join finds each row's values. The list makes the plan use the primary
# key, and prunes partitions while PostgreSQL still plans for values.
_WRITE = Prepared(
    f"""
    UPDATE email_notifications AS row SET
        status = new.status,
        ended_by = new.ended_by,
        retry_count = new.retry_count,
        next_attempt_at = coalesce(
            statement_timestamp() + new.wait * interval '1 second', row.next_attempt_at),
        claimed_at = NULL,
        claim_token = NULL,
        sent_at = CASE WHEN new.status = 'sent' THEN statement_timestamp() END,
        last_error = CASE WHEN new.untried THEN row.last_error ELSE new.error END,
        errors = CASE WHEN new.failures = '[]' THEN row.errors ELSE row.errors || (
            SELECT jsonb_agg(jsonb_build_object('at', statement_timestamp()) || entry ORDER BY place)
            FROM jsonb_array_elements(new.failures) WITH ORDINALITY AS each (entry, place)) END,
        provider = coalesce(nullif(new.provider, ''), row.provider),
        provider_message_id = coalesce(nullif(new.message_id, ''), row.provider_message_id),
        updated_at = statement_timestamp()
    FROM jsonb_to_recordset(%s::jsonb) AS new ({_VALUES})
    WHERE row.id = new.id AND row.id = ANY(%s::uuid[])
    """  # noqa: S608 - only constants are inserted
)


def settle(ended: Iterable[tuple[Claimed, Outcome]]) -> list[EmailChange]:
    """Write the outcomes of claims, in one transaction of four statements, and return the changes.

    Before it, ask whose the failures are of those without a retry left.
    An outcome of a lost claim changes nothing, unless it is an acceptance. An e-mail that has to wait is
    locked together with those that go first, and looks at them again.
    """
    outcomes: defaultdict[uuid.UUID, list[tuple[Claimed, Outcome]]] = defaultdict(list)
    earlier: set[uuid.UUID] = set()
    # Prefer an acceptance, then the outcome of the current claim.
    for email, outcome in sorted(say_whose(ended), key=lambda pair: pair[1].verdict is not Verdict.ACCEPTED):
        outcomes[email.id].append((email, outcome))
        earlier.update(outcome.waits_for)
    with transaction.atomic():
        decided = []
        rows = {row.id: row for row in _lock(earlier.union(outcomes))}
        for row in rows.values():
            for email, outcome in outcomes.get(row.id, ()):
                is_current = row.status in SETTLE.before and row.claim_token == email.claim_token
                if is_current and outcome.waits_for:
                    outcome = look_again(email, outcome, rows=rows)
                if is_current or _proves_acceptance(row, outcome):
                    decided.append((row, outcome))
                    break
        return settle_locked(decided)


def accept(outcomes: Mapping[uuid.UUID, Outcome]) -> list[EmailChange]:
    """Make unsent e-mails `sent`: somebody knows that a provider accepted them. Return the changes."""
    with transaction.atomic():
        rows = [row for row in _lock(outcomes) if _proves_acceptance(row, outcomes[row.id])]
        return settle_locked([(row, outcomes[row.id]) for row in rows])


def _lock(ids: Iterable[uuid.UUID]) -> Iterable[EmailNotification]:
    return EmailNotification.objects.using(DEFAULT_DB_ALIAS).raw(_LOCK, [list(ids)])


def _proves_acceptance(row: EmailNotification, outcome: Outcome) -> bool:
    return outcome.verdict is Verdict.ACCEPTED and row.status in ACCEPT.before


def set_aside(*, until: dt.datetime, reason: str, limit: int) -> list[EmailChange]:
    """Make dead letters of up to `limit` e-mails that may have been sent between a backup and `until`.

    These are the ones that were due or claimed by `until`. `reason` becomes their last error.
    """
    due = Q(status__in=DUE_STATES, next_attempt_at__lte=until)
    claimed = Q(status=Status.PROCESSING, claimed_at__lte=until)
    unproven = EmailNotification.objects.filter(due | claimed).select_for_update(skip_locked=True)
    return _set_aside(unproven, reason=reason, limit=limit)


def set_aside_replaced(*, ids: Iterable[uuid.UUID], reason: str) -> list[EmailChange]:
    """Make dead letters of e-mails that were replaced by a copy or given up after a backup."""
    unfinished = EmailNotification.objects.filter(id__in=list(ids), status__in=SET_ASIDE_REPLACED.before)
    replaced = unfinished.exclude(ended_by=EndedBy.RESTORE).select_for_update()
    return _set_aside(replaced, reason=reason)


def _set_aside(
    rows: QuerySet[EmailNotification], *, reason: str, limit: int | None = None
) -> list[EmailChange]:
    outcome = Outcome(Verdict.RESTORED, text=reason)
    with transaction.atomic():
        locked = rows.defer(*CONTENT).order_by("id")[:limit]
        return settle_locked([(row, outcome) for row in locked])


def take_back(*, provider: str, since: dt.datetime, is_same: Callable[[str], bool]) -> list[EmailChange]:
    """Make dead letters of a provider pending again: it refused our account. Return the changes.

    `since` is the first refusal's time, and `is_same` recognises the refusal in a row's last error. Leave out
    dead letters that somebody else changes right now.
    """
    dead = EmailNotification.objects.filter(
        status__in=TAKE_BACK.before, ended_by=EndedBy.PROVIDER, provider=provider, updated_at__gte=since
    ).defer(*CONTENT)
    outcome = Outcome(Verdict.RETURNED, provider, text="the provider had refused our account")
    changes: list[EmailChange] = []
    last = uuid.UUID(int=0)
    while True:
        with transaction.atomic():
            page = dead.filter(id__gt=last).order_by("id").select_for_update(skip_locked=True)
            rows = list(page[:TAKE_BACK_ROWS])
            changes += settle_locked([(row, outcome) for row in rows if is_same(row.last_error)])
        if len(rows) < TAKE_BACK_ROWS:
            return changes
        last = rows[-1].id


def settle_locked(decided: Sequence[tuple[EmailNotification, Outcome]]) -> list[EmailChange]:
    """Write outcomes to rows that the caller has locked, in one statement, and return the changes.

    With EMAIL_EVENTS, write an event for each e-mail that becomes `sent` or a dead letter.
    """
    if not decided:
        return []
    policy, written, changes = current_policy(), [], []
    for row, outcome in decided:
        decision = decide_status(
            outcome=outcome,
            retry_count=row.retry_count,
            max_retries=row.max_retries,
            attempts=count_attempts(row.errors, row.resent_at) if row.errors else 0,
            lost=count_lost(row.errors, row.resent_at) if outcome.is_lost else 0,
            policy=policy,
            chance=random.random(),  # noqa: S311 - spreads retries, guards nothing
        )
        was, row.status, row.retry_count = row.status, decision.status, decision.retry_count
        row.ended_by = decision.ended_by or ""
        written.append(_values(row.id, outcome, decision))
        changes.append(EmailChange.of(row, was=was, outcome=outcome, wait_seconds=decision.wait_seconds))
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.execute(_WRITE, [json.dumps(written), [change.id for change in changes]])
    if settings.EMAIL_EVENTS:
        _publish_ends(decided)
    log_changes(changes)
    wake_waiting(row for row, _ in decided if row.status in ENDED)
    return changes


def _values(id: uuid.UUID, outcome: Outcome, decision: Decision) -> dict[str, Any]:
    return {
        "id": str(id),
        "status": str(decision.status),
        "ended_by": str(decision.ended_by or ""),
        "retry_count": decision.retry_count,
        "wait": None if decision.wait_seconds is None else float(decision.wait_seconds),
        "failures": [entry_of(failure) for failure in outcome.failures],
        "untried": outcome.verdict in UNTRIED,
        "error": "" if decision.status == Status.SENT else outcome.error,
        "provider": outcome.provider,
        "message_id": make_storable(outcome.provider_message_id)[:MESSAGE_ID_LIMIT],
    }


def _publish_ends(decided: Sequence[tuple[EmailNotification, Outcome]]) -> None:
    ended = [(row, outcome) for row, outcome in decided if Status(row.status) in TOPICS]
    try:
        with transaction.atomic():
            for row, outcome in ended:
                attempts = len(row.errors) + len(outcome.failures)
                save_together(end_event(row, attempts=attempts, provider=outcome.provider))
    except DatabaseError:  # keep the outcomes: a provider may have accepted these e-mails
        if connections[DEFAULT_DB_ALIAS].needs_rollback:
            raise  # the whole transaction is lost, so the caller settles again
        log.exception("events of e-mails not written", ids=[str(row.id) for row, _ in ended])
