"""Decide whose turn it is: the e-mails of one order leave in the order of its changes.

An e-mail waits until the earlier ones of its order have ended, and is not sent at all if a later change has
made it old news. The order's version says which of two is earlier; hosts' clocks and ids do not. The
customer's e-mails wait only for each other, and so do the shop copies. Copies and resent e-mails have a
person's word: they wait for none and hold up none.

An e-mail that waits marks the earlier ones as awaited. Whoever ends one of those makes the waiting ones due,
so that their claims need not look for them. A crash in between delays them by `LONGEST_WAIT_SECONDS`.
"""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from django.db import DEFAULT_DB_ALIAS, connections

from notifications.models import EmailNotification
from notifications.states.claimed import Claimed
from notifications.states.errors import ErrorEntry, failing_since, last_doubt
from notifications.states.outcomes import Outcome, Verdict
from notifications.states.transitions import DUE_STATES, EndedBy, Status, list_in_sql
from notifications.wake import Reason, wake
from runtime.database.postgres.cursor import Prepared
from runtime.database.transactions import after_commit

#: How long an e-mail that fails by itself, or is held, may delay the later ones of its order.
EMAIL_ORDER_PATIENCE = dt.timedelta(minutes=15)
#: A waiting e-mail looks again after so long, if nobody wakes it before.
LONGEST_WAIT_SECONDS = 60.0
#: By event, the events that make its e-mail old news
_overtaken_by: dict[str, Collection[str]] = {}
#: The states of an e-mail that may hold up later ones.
_BLOCKING = (*DUE_STATES, Status.PROCESSING)
# Copies have no version, and no comparison with NULL is true.
_READ = Prepared(
    f"""
    SELECT mine.id, other.id, other.event_type, other.order_version > mine.version, other.status,
        other.errors, other.resent_at
    FROM jsonb_to_recordset(%s::jsonb) AS mine (id uuid, order_id uuid, version int, is_customers bool)
    JOIN email_notifications AS other
        ON other.order_id = mine.order_id AND (other.shop_copy_of IS NULL) = mine.is_customers
    WHERE other.order_version < mine.version
            AND other.status IN ({list_in_sql(_BLOCKING)}) AND other.resent_at IS NULL
        OR other.order_version > mine.version
            AND other.event_type = ANY(%s) AND other.recipient_email <> ''
            AND other.ended_by <> '{EndedBy.TRIAL.value}'
    ORDER BY other.order_version
    """  # noqa: S608 - only constants are inserted
)
_MARK_AWAITED = "UPDATE email_notifications SET is_awaited = true WHERE id = ANY(%s)"
_MAKE_DUE = """
    WITH waiting AS MATERIALIZED (
        SELECT id FROM email_notifications
        WHERE order_id = ANY(%(order_ids)s) AND order_version IS NOT NULL AND status = 'pending'
          AND next_attempt_at > statement_timestamp()
          AND next_attempt_at <= statement_timestamp() + %(seconds)s * interval '1 s'
        ORDER BY id FOR UPDATE
    )
    UPDATE email_notifications AS row SET next_attempt_at = statement_timestamp()
    FROM waiting WHERE row.id = waiting.id
    """


class Earlier(Protocol):
    """The values of an earlier e-mail that decide whether a later one waits."""

    @property
    def status(self) -> str: ...
    @property
    def errors(self) -> Sequence[ErrorEntry]: ...
    @property
    def resent_at(self) -> dt.datetime | None: ...


class Sibling(NamedTuple):
    """Another e-mail of an order, as `_READ` returns it."""

    id: uuid.UUID
    event_type: str
    is_later: bool
    status: str
    errors: Sequence[ErrorEntry]
    resent_at: dt.datetime | None


def register_overtaken(events: Mapping[str, Collection[str]]) -> None:
    """Register by event the events that make its e-mail old news. E-mails know no order."""
    _overtaken_by.update(events)


def find_out_of_turn(emails: Iterable[Claimed]) -> dict[uuid.UUID, Outcome]:
    """Return the outcomes of those claimed e-mails that are overtaken or have to wait, in one statement."""
    ordered = {
        email.id: email for email in emails if email.order_version is not None and email.resent_at is None
    }
    outcomes = {}
    for id, siblings in _read_siblings(ordered.values()).items():
        if outcome := _judge(ordered[id], siblings):
            outcomes[id] = outcome
    return outcomes


def find_overtaken(emails: Iterable[EmailNotification]) -> dict[uuid.UUID, str]:
    """Return why each of these unsent e-mails is old news, for those that a later change has overtaken."""
    ordered = {email.id: email for email in emails if email.order_version is not None}
    reasons = {}
    for id, siblings in _read_siblings(ordered.values()).items():
        if reason := _overtaken(ordered[id], siblings):
            reasons[id] = reason
    return reasons


def _read_siblings(emails: Collection[Claimed | EmailNotification]) -> dict[uuid.UUID, list[Sibling]]:
    """Return the e-mails that may hold up or overtake each of these, by the order's version."""
    if not emails:
        return {}
    mine = [
        {
            "id": str(email.id),
            "order_id": str(email.order_id),
            "version": email.order_version,
            "is_customers": email.shop_copy_of is None,
        }
        for email in emails
    ]
    overtaking = sorted({event for events in _overtaken_by.values() for event in events})
    siblings: defaultdict[uuid.UUID, list[Sibling]] = defaultdict(list)
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.execute(_READ, [json.dumps(mine), overtaking])
        for id, other_id, event_type, is_later, status, errors, resent_at in cursor.fetchall():
            other = Sibling(other_id, event_type, is_later, status, json.loads(errors), resent_at)
            siblings[id].append(other)
    return siblings


def _judge(email: Claimed, siblings: Sequence[Sibling]) -> Outcome | None:
    """Return the outcome of an e-mail that must not be sent now."""
    if reason := _overtaken(email, siblings):
        return Outcome(Verdict.OVERTAKEN, text=reason)
    waits = {
        other.id: seconds
        for other in siblings
        if not other.is_later
        and not _will_be_overtaken(other, event_type=email.event_type)
        and (seconds := seconds_to_wait(other, at=email.claimed_at))
    }
    return _wait_for(waits) if waits else None


def _overtaken(email: Claimed | EmailNotification, siblings: Sequence[Sibling]) -> str:
    """Return the reason why an e-mail is overtaken, or an empty text."""
    events = _overtaken_by.get(email.event_type, ())
    by = (other.event_type for other in siblings if other.is_later and other.event_type in events)
    return next((f"overtaken by {event}" for event in by), "")


def _will_be_overtaken(other: Sibling, *, event_type: str) -> bool:
    """Return whether an earlier e-mail will be discarded at its next claim because of this event."""
    is_certain = other.status in DUE_STATES and last_doubt(other.errors, other.resent_at) is None
    return is_certain and event_type in _overtaken_by.get(other.event_type, ())


def _wait_for(waits: Mapping[uuid.UUID, float]) -> Outcome:
    return Outcome(
        Verdict.RETURNED,
        text="an earlier e-mail of the order goes first",
        wait_seconds=max(waits.values()),
        waits_for=tuple(waits),
    )


def seconds_to_wait(earlier: Earlier, *, at: dt.datetime) -> float:
    """Return for how long a later e-mail of the order has to wait before it looks again, 0 if it need not.

    `at` is the database's time.
    """
    if earlier.status not in _BLOCKING or earlier.resent_at is not None:
        return 0.0
    since = None if earlier.status == Status.PENDING else failing_since(earlier.errors)
    if since is None:
        return LONGEST_WAIT_SECONDS
    left = EMAIL_ORDER_PATIENCE - (at - since)
    return min(LONGEST_WAIT_SECONDS, max(0.0, left.total_seconds()))


def look_again(email: Claimed, outcome: Outcome, *, rows: Mapping[uuid.UUID, EmailNotification]) -> Outcome:
    """Return the outcome of a waiting e-mail, whose row and `rows`, the earlier ones, are locked.

    If it still waits, mark the earlier ones as awaited. Otherwise it is due at once.
    """
    waits = {
        id: seconds
        for id in outcome.waits_for
        if id in rows and (seconds := seconds_to_wait(rows[id], at=email.claimed_at))
    }
    if not waits:
        return Outcome(Verdict.RETURNED, wait_seconds=0.0)
    new = [id for id in waits if not rows[id].is_awaited]
    if new:
        with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
            cursor.execute(_MARK_AWAITED, [new])
        for id in new:
            rows[id].is_awaited = True
    return _wait_for(waits)


def wake_waiting(ended: Iterable[EmailNotification]) -> None:
    """Make the e-mails due that waited for these, which no longer hold up others. Act after the commit."""
    order_ids = sorted({row.order_id for row in ended if row.is_awaited})
    if order_ids:
        after_commit(lambda: _make_due(order_ids))


def _make_due(order_ids: Sequence[uuid.UUID]) -> None:
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.execute(_MAKE_DUE, {"order_ids": list(order_ids), "seconds": LONGEST_WAIT_SECONDS})
        woken = cursor.rowcount
    if woken:
        wake(Reason.DUE)
