"""The conditions of e-mails: dead letters, overdue ones, and claims that nothing recovers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

from django.conf import settings

from notifications.models import EmailNotification
from notifications.states.transitions import DUE_STATES, list_in_sql
from runtime import conditions
from runtime.conditions import HOUR, Condition, Query, Reading, Row, positive

#: The subject of these conditions, and the label of their metrics.
TABLE = EmailNotification._meta.db_table
#: A row is held if a provider may have accepted its last attempt and the next attempt is not due.
_SELECT = """
    SELECT * FROM (
        SELECT count(*) FILTER (WHERE status = 'pending') AS pending,
            count(*) FILTER (WHERE status = 'failed') AS failed, count(*) FILTER (WHERE held) AS held,
            extract(epoch FROM statement_timestamp() - min(next_attempt_at))::float8 AS due_seconds,
            extract(epoch FROM statement_timestamp() - min(since) FILTER (WHERE NOT held))::float8
                AS waiting_seconds
        FROM (
            SELECT status, next_attempt_at, coalesce(resent_at, created_at) AS since, status = 'failed'
                AND next_attempt_at > statement_timestamp() AND errors->-1->>'outcome' = 'ambiguous' AS held
            FROM email_notifications WHERE status IN ({due})
            ORDER BY next_attempt_at LIMIT {most}
        ) AS row
    ) AS waiting, (
        SELECT count(*) AS processing,
            extract(epoch FROM statement_timestamp() - min(claimed_at))::float8 AS claimed_seconds,
            extract(epoch FROM statement_timestamp() - min(since))::float8 AS processing_seconds
        FROM (
            SELECT claimed_at, coalesce(resent_at, created_at) AS since
            FROM email_notifications WHERE status = 'processing' ORDER BY claimed_at LIMIT {most}
        ) AS row
    ) AS claimed, (
        SELECT count(*) AS dead_lettered FROM (
            SELECT FROM email_notifications WHERE status = 'dead_lettered' ORDER BY id DESC LIMIT {most}
        ) AS row
    ) AS dead
"""


class Rows(NamedTuple):
    """The unfinished e-mails."""

    pending: int = 0
    failed: int = 0
    held: int = 0  # the failed ones that wait for evidence of an acceptance
    due_seconds: float = 0.0  # since the longest-waiting row became due
    waiting_seconds: float = 0.0  # since the oldest row that is not held was written or resent
    processing: int = 0
    claimed_seconds: float = 0.0  # since the oldest current claim
    processing_seconds: float = 0.0  # since the oldest row in processing was written or resent
    dead_lettered: int = 0

    @property
    def unfinished_seconds(self) -> float:
        """Seconds since the oldest unfinished row that is neither held nor dead was written or resent."""
        return max(self.waiting_seconds, self.processing_seconds)


def _rows(found: Sequence[Row], _: dt.datetime) -> Rows:
    return Rows(**positive(found[0]))


UNFINISHED_EMAILS: Query[Rows] = Query(
    name="unfinished e-mails",
    select=lambda _: _SELECT.format(most=conditions.MOST, due=list_in_sql(DUE_STATES)),
    read=_rows,
)

DEAD_LETTERS = Condition(
    code="EmailDeadLetters",
    place=60,
    source=UNFINISHED_EMAILS,
    readings=lambda rows: [Reading(rows.dead_lettered, TABLE)],
    sentence="{number} dead letters: resend them or give them up",
)
OVERDUE = Condition(
    code="EmailOverdue",
    place=70,
    source=UNFINISHED_EMAILS,
    readings=lambda rows: [Reading(rows.unfinished_seconds, TABLE)],
    limit=HOUR,
    sentence="an e-mail is unfinished for more than an hour",
)
PROCESSING_STUCK = Condition(
    code="EmailProcessingStuck",
    place=80,
    source=UNFINISHED_EMAILS,
    readings=lambda rows: [Reading(rows.claimed_seconds, TABLE)],
    limit=lambda _: settings.LEASE_SECONDS + 2 * settings.POLL_INTERVAL,
    sentence="a claim is older than its lease, and no poll recovers it",
)
conditions.register(DEAD_LETTERS, OVERDUE, PROCESSING_STUCK)
