"""Decide whose turn it is: the e-mails of one order leave in the order of its changes.

An e-mail waits until the earlier ones of its order have ended, and is not sent at all if a later change has
made it old news. The order's version says which of two is earlier; hosts' clocks and ids do not. The
customer's e-mails wait only for each other, and so do the shop copies. Copies and resent e-mails have a
person's word: they wait for none and hold up none.

An e-mail that waits marks the earlier ones as awaited. The transaction that ends one of those makes the
waiting ones due, so that their claims need not look for them. A crash in between delays them by
`LONGEST_WAIT_SECONDS`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import uuid
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
GOES_FIRST = "an earlier e-mail of the order goes first"
#: By event, the events that make its e-mail old news
_overtaken_by: dict[str, Collection[str]] = {}
#: The states of an e-mail that may hold up later ones.
_BLOCKING = (*DUE_STATES, Status.PROCESSING)
_NOT_PENDING = tuple(status for status in _BLOCKING if status != Status.PENDING)
#: No more than so many earlier e-mails of one order are looked at. If there are more, the next one waits.
MOST_EARLIER = 100
# Each look-up reads the index (order_id, order_version) and stops at its LIMIT, so that an order with many
# e-mails costs no more than others. The nearest earlier one usually decides alone; most e-mails have none.
# Copies have no version, and no comparison with NULL is true. "Pending" is written so that PostgreSQL cannot
# prove that the index of due rows has them all: without statistics it would read that one for each e-mail.
_READ = Prepared(
    f"""
    SELECT mine.id, later.event_type, CASE WHEN nearest.goes_first THEN nearest.id ELSE pending.id END,
        earlier.id, earlier.event_type, earlier.status, earlier.errors, earlier.resent_at
    FROM jsonb_to_recordset(%s::jsonb) AS mine
        (id uuid, order_id uuid, version int, is_customers bool, overtakes text[], overtaken_by text[])
    LEFT JOIN LATERAL (
        SELECT other.event_type FROM email_notifications AS other
        WHERE cardinality(mine.overtaken_by) > 0
            AND other.order_id = mine.order_id AND other.order_version > mine.version
            AND (other.shop_copy_of IS NULL) = mine.is_customers
            AND other.event_type = ANY(mine.overtaken_by) AND other.recipient_email <> ''
            AND other.ended_by <> '{EndedBy.TRIAL.value}'
        ORDER BY other.order_version LIMIT 1
    ) AS later ON true
    LEFT JOIN LATERAL (
        SELECT other.id, other.status = '{Status.PENDING.value}'
            AND other.event_type <> ALL(mine.overtakes) AS goes_first
        FROM email_notifications AS other
        WHERE later.event_type IS NULL
            AND other.order_id = mine.order_id AND other.order_version < mine.version
            AND (other.shop_copy_of IS NULL) = mine.is_customers
            AND other.status IN ({list_in_sql(_BLOCKING)}) AND other.resent_at IS NULL
        ORDER BY other.order_version DESC LIMIT 1
    ) AS nearest ON true
    LEFT JOIN LATERAL (
        SELECT other.id FROM email_notifications AS other
        WHERE NOT nearest.goes_first
            AND other.order_id = mine.order_id AND other.order_version < mine.version
            AND (other.shop_copy_of IS NULL) = mine.is_customers
            AND other.status IN ({list_in_sql(_BLOCKING)}) AND other.resent_at IS NULL
            AND other.status NOT IN ({list_in_sql(_NOT_PENDING)})
            AND other.event_type <> ALL(mine.overtakes)
        ORDER BY other.order_version DESC LIMIT 1
    ) AS pending ON true
    LEFT JOIN LATERAL (
        SELECT other.id, other.event_type, other.status, other.errors, other.resent_at
        FROM email_notifications AS other
        WHERE NOT nearest.goes_first AND pending.id IS NULL
            AND other.order_id = mine.order_id AND other.order_version < mine.version
            AND (other.shop_copy_of IS NULL) = mine.is_customers
            AND other.status IN ({list_in_sql(_BLOCKING)}) AND other.resent_at IS NULL
        ORDER BY other.order_version DESC LIMIT {MOST_EARLIER}
    ) AS earlier ON true
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


class EarlierEmail(NamedTuple):
    """An earlier e-mail of an order, as `_READ` returns it."""

    id: uuid.UUID
    event_type: str
    status: str
    errors: Sequence[ErrorEntry]
    resent_at: dt.datetime | None


@dataclasses.dataclass(slots=True)
class Siblings:
    """The other e-mails of an order that decide about one of them."""

    #: The event of a later e-mail that makes it old news
    overtaken_by: str | None
    #: An earlier e-mail that is pending and goes first. Then no others are read.
    pending: uuid.UUID | None
    #: Those that may go first, `MOST_EARLIER` at most
    earlier: list[EarlierEmail]


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
        if outcome := _decide(ordered[id], siblings):
            outcomes[id] = outcome
    return outcomes


def find_overtaken(emails: Iterable[EmailNotification]) -> dict[uuid.UUID, str]:
    """Return why each of these unsent e-mails is old news, for those that a later change has overtaken."""
    ordered = {email.id: email for email in emails if email.order_version is not None}
    reasons = {}
    for id, siblings in _read_siblings(ordered.values()).items():
        if siblings.overtaken_by:
            reasons[id] = _reason(siblings.overtaken_by)
    return reasons


def _read_siblings(emails: Collection[Claimed | EmailNotification]) -> dict[uuid.UUID, Siblings]:
    """Return the e-mails that hold up or overtake each of these, or may do so."""
    if not emails:
        return {}
    mine = [
        {
            "id": str(email.id),
            "order_id": str(email.order_id),
            "version": email.order_version,
            "is_customers": email.shop_copy_of is None,
            "overtakes": [event for event, by in _overtaken_by.items() if email.event_type in by],
            "overtaken_by": [*_overtaken_by.get(email.event_type, ())],
        }
        for email in emails
    ]
    siblings: dict[uuid.UUID, Siblings] = {}
    with connections[DEFAULT_DB_ALIAS].cursor() as cursor:
        cursor.execute(_READ, [json.dumps(mine)])
        for id, overtaken_by, pending, earlier, event_type, status, errors, resent_at in cursor.fetchall():
            read = siblings.setdefault(id, Siblings(overtaken_by, pending, []))
            if earlier:
                read.earlier.append(EarlierEmail(earlier, event_type, status, json.loads(errors), resent_at))
    return siblings


def _decide(email: Claimed, siblings: Siblings) -> Outcome | None:
    """Return the outcome of an e-mail that must not be sent now."""
    if siblings.overtaken_by:
        return Outcome(Verdict.OVERTAKEN, text=_reason(siblings.overtaken_by))
    if siblings.pending:
        return _wait_for({siblings.pending: LONGEST_WAIT_SECONDS})
    waits = {
        other.id: seconds
        for other in siblings.earlier
        if not _will_be_overtaken(other, event_type=email.event_type)
        and (seconds := seconds_to_wait(other, at=email.claimed_at))
    }
    if not waits and len(siblings.earlier) == MOST_EARLIER:  # others before these may go first
        return Outcome(Verdict.RETURNED, text=GOES_FIRST, wait_seconds=LONGEST_WAIT_SECONDS)
    return _wait_for(waits) if waits else None


def _reason(event_type: str) -> str:
    return f"overtaken by {event_type}"


def _will_be_overtaken(other: EarlierEmail, *, event_type: str) -> bool:
    """Return whether an earlier e-mail will be discarded at its next claim because of this event."""
    is_certain = other.status in DUE_STATES and last_doubt(other.errors, other.resent_at) is None
    return is_certain and event_type in _overtaken_by.get(other.event_type, ())


def _wait_for(waits: Mapping[uuid.UUID, float]) -> Outcome:
    return Outcome(
        Verdict.RETURNED,
        text=GOES_FIRST,
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
