"""Claim due rows, and take back claims whose worker is dead or stuck.

`Claims` decides for one drain how many rows to claim, how many of them new, and how far back to read.

Sent rows leave dead entries in the index of due rows. Vacuum cannot remove them while a session holds an
older snapshot (a dump, a forgotten transaction), so each claim steps over all of them. A drain therefore
remembers how long its last claimed row had been due, and starts its next claims there (`Lookback`).

Such a claim can miss a row that got its place in the queue late, because its transaction took long to commit
or because another process gave it back. A claim of everything finds such rows. It happens at each poll, after
each row that this process gave back, and otherwise so rarely that these claims take a twentieth of the time.
"""

from __future__ import annotations

import datetime as dt
import math
import time
import uuid

from django.db import models, transaction
from django.db.models import F
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from notifications.models import CONTENT, EmailNotification
from notifications.states.outcomes import LEASE_EXPIRED, Outcome, Verdict
from notifications.states.settle_sql import STATE
from notifications.states.transitions import CLAIM, RECOVER, list_in_sql
from outbox.gate.gate import Capacity
from outbox.metrics import CLAIMS
from runtime.database.postgres.cursor import Prepared

#: During a backlog, this share of the claimed rows are the newest first attempts.
FRESH_SHARE = 1 / 4
#: Look back so much further than to the last claimed row, because transactions may commit late.
SLACK_SECONDS = 2.0
#: The pause after a claim of everything, as a multiple of the claim's duration, and its maximum in seconds.
PAUSE_FACTOR, LONGEST_PAUSE_SECONDS = 20.0, 30.0
#: A claim with a lookback takes as the newest rows those that became due within this time.
FRESH_SECONDS = 5.0
#: A pause of the delivery (runtime.models.pauses) stops claims and the recovery of expired claims.
NOT_PAUSED = "NOT EXISTS (SELECT FROM pauses WHERE part = 'delivery')"
#: The states of due rows, as SQL.
_DUE = list_in_sql(CLAIM.before)
#: The columns that a send needs, besides those of the state.
_CONTENT = "subject, body, body_text, profile, from_email, reply_to"
_RETURNED = ", ".join(f"row.{name.strip()}" for name in f"{STATE}, {_CONTENT}".split(","))


def _build_claim(picked: str) -> Prepared:
    """Return the statement that moves the rows of the CTE `picked` to `processing`.

    `picked` has the columns id, status, next_attempt_at, updated_at and place. A row whose `updated_at` is
    its `created_at` has not changed since its insert, so this is its first claim.

    The states and the pause are written into the statement, because a plan without values can use the index
    of due rows only then. Without values, PostgreSQL also expects a LIMIT to take a tenth of the due rows,
    and would join so many with the whole table. The array makes it read each row by its id.
    """
    return Prepared(
        f"""
        WITH {picked}
        UPDATE email_notifications AS row SET status = '{CLAIM.to}', claimed_at = statement_timestamp(),
            claim_token = %(token)s, updated_at = statement_timestamp()
        FROM picked WHERE row.id = picked.id AND row.id = ANY (ARRAY(SELECT id FROM picked))
        RETURNING {_RETURNED}, picked.status AS was, picked.place,
            extract(epoch FROM statement_timestamp())::float8 AS claimed_epoch,
            extract(epoch FROM statement_timestamp() - picked.next_attempt_at)::float8 AS age_seconds,
            CASE WHEN picked.updated_at = row.created_at THEN
                extract(epoch FROM statement_timestamp() - row.created_at)::float8 END AS unclaimed_seconds
        """  # noqa: S608 - only constants are inserted
    )


def _longest_and_newest(*, since: str = "", newest_since: str = "") -> str:
    """Return the CTE `picked` of `claim`, which leaves out rows that were due before these bounds."""
    # Take rows of `newest` only if `longest` is full, because then there is a backlog. They come first in the
    # batch, so that they are sent first. MATERIALIZED locks each row once, in the given order.
    return f"""
        longest AS MATERIALIZED (
            SELECT id, status, next_attempt_at, updated_at FROM email_notifications
            WHERE status IN ({_DUE}) AND next_attempt_at <= statement_timestamp() {since}
              AND {NOT_PAUSED}
            ORDER BY next_attempt_at LIMIT %(longest)s FOR UPDATE SKIP LOCKED
        ), newest AS MATERIALIZED (
            SELECT id, status, next_attempt_at, updated_at FROM email_notifications
            WHERE status = 'pending' AND retry_count = 0
              AND next_attempt_at <= statement_timestamp() {newest_since} AND {NOT_PAUSED}
              AND (SELECT count(*) FROM longest) = %(longest)s AND id NOT IN (SELECT id FROM longest)
            ORDER BY next_attempt_at DESC LIMIT %(fresh)s FOR UPDATE SKIP LOCKED
        ), picked AS (
            SELECT *, row_number() OVER () AS place
            FROM (
                (SELECT * FROM newest)
                UNION ALL
                (SELECT * FROM longest LIMIT %(limit)s - (SELECT count(*) FROM newest))
            ) AS both_parts
        )
        """  # noqa: S608 - only constants are inserted


#: The statements of `claim`, without and with a lookback, and of `claim_untried`.
CLAIM_ALL = _build_claim(_longest_and_newest())
CLAIM_RECENT = _build_claim(
    _longest_and_newest(
        since="AND next_attempt_at >= statement_timestamp() - %(lookback)s * interval '1 s'",
        newest_since="AND next_attempt_at >= statement_timestamp() - %(newest_lookback)s * interval '1 s'",
    )
)
CLAIM_UNTRIED = _build_claim(f"""
        picked AS MATERIALIZED (
            SELECT id, status, next_attempt_at, updated_at, 0 AS place FROM email_notifications
            WHERE status = 'pending' AND retry_count = 0 AND errors = '[]'::jsonb AND resent_at IS NULL
              AND next_attempt_at <= statement_timestamp() AND {NOT_PAUSED}
            ORDER BY next_attempt_at DESC LIMIT 1 FOR UPDATE SKIP LOCKED
        )
        """)  # noqa: S608 - only constants are inserted


def claim(*, limit: int, fresh: int = 0, lookback_seconds: float | None = None) -> list[EmailNotification]:
    """Claim up to `limit` due rows for the caller alone in one statement, and commit.

    Claim the rows that have been due longest, and during a backlog also `fresh` of the newest `pending` rows
    that have used no retry. Each row has the columns that a send needs, its previous state (`was`), for how
    many seconds it had been due (`age_seconds`), at its first claim for how many seconds it had been stored
    (`unclaimed_seconds`), and a new `claim_token`, which `settle` compares.

    With `lookback_seconds`, leave out rows that have been due for longer, and take as the newest rows those
    of the last `FRESH_SECONDS` (see `Lookback`). Then the longest due rows fill the batch.
    """
    if lookback_seconds is None:
        return _claim(CLAIM_ALL, limit=limit, longest=limit - fresh, fresh=fresh)
    newest = min(FRESH_SECONDS, lookback_seconds)
    values = {"lookback": lookback_seconds, "newest_lookback": newest}
    return _claim(CLAIM_RECENT, limit=limit, longest=limit, fresh=fresh, **values)


def claim_untried() -> list[EmailNotification]:
    """Claim the newest due row that was never tried, if one exists, to test a provider."""
    return _claim(CLAIM_UNTRIED)


def _claim(statement: Prepared, **values: float) -> list[EmailNotification]:
    """Move rows to `processing` under a new token."""
    rows = EmailNotification.objects.raw(statement, {**values, "token": uuid.uuid4()})
    return sorted(rows, key=lambda row: row.place)


def recover(*, lease_seconds: float, limit: int = 500) -> list[EmailNotification]:
    """Take back up to `limit` claims older than `lease_seconds`, because their worker is dead or stuck.

    Such an attempt is ambiguous, because the message may have been sent or may have killed the worker. The
    row uses up a retry and is held, or becomes a dead letter if no retry is left. Take none back while the
    delivery is paused.
    """
    text = f"no outcome within {lease_seconds:g} s"
    outcome = Outcome(Verdict.AMBIGUOUS, code=LEASE_EXPIRED, text=text, has_used_retry=True)
    rows = EmailNotification.objects.filter(
        _not_paused(), status__in=RECOVER.before, claimed_at__lt=Now() - dt.timedelta(seconds=lease_seconds)
    )
    with transaction.atomic(using=rows.db):
        expired = rows.select_for_update(skip_locked=True).defer(*CONTENT).order_by("id")[:limit]
        return EmailNotification.objects.settle_locked([(row, outcome) for row in expired])


def next_due_in(*, lookback_seconds: float | None = None) -> float | None:
    """Return the seconds until the earliest waiting row is due, or None if no row waits.

    Leave out rows that have been due for more than `lookback_seconds`. While the delivery is paused, no row
    waits.
    """
    waiting = EmailNotification.objects.filter(_not_paused(), status__in=CLAIM.before)
    if lookback_seconds is not None:
        waiting = waiting.filter(next_attempt_at__gte=Now() - dt.timedelta(seconds=lookback_seconds))
    waiting = waiting.order_by("next_attempt_at")
    left = waiting.annotate(left=F("next_attempt_at") - Now()).values_list("left", flat=True).first()
    return None if left is None else float(left.total_seconds())


def _not_paused() -> RawSQL:
    return RawSQL(NOT_PAUSED, [], output_field=models.BooleanField())  # noqa: S611 - ours


class Lookback:
    """One drain's memory. Times are seconds of the process's monotonic clock."""

    def __init__(self) -> None:
        self._taken_until = -math.inf  # rows that were due before this moment were claimed
        self._whole_at = -math.inf  # when to read everything again

    def seconds(self, *, now: float) -> float | None:
        """Return how many seconds back a claim at `now` has to read, or None for everything."""
        if now >= self._whole_at:
            return None
        return now - self._taken_until + SLACK_SECONDS

    def forget(self) -> None:
        """Make the next claim read everything."""
        self._whole_at = -math.inf

    def note_claim(self, *, is_whole: bool, began_at: float, ended_at: float, age_seconds: float) -> None:
        """Note a claim of all rows due for longer than `age_seconds`. If `is_whole`, it read everything."""
        self._taken_until = began_at - age_seconds
        if is_whole:
            self._whole_at = ended_at + min(LONGEST_PAUSE_SECONDS, PAUSE_FACTOR * (ended_at - began_at))


class Claims:
    """The claims of one drain, and its memory between two claims."""

    def __init__(self) -> None:
        self._seconds = CLAIMS.labels(EmailNotification._meta.db_table)
        self.lookback = Lookback()
        #: The fraction of a fresh row that earlier claims were too small to include.
        self._fresh_credit = 0.0

    def claim(self, capacity: Capacity) -> tuple[list[EmailNotification], bool]:
        """Claim rows for `capacity`. Return them, and whether more rows may be due."""
        began = time.monotonic()
        if capacity.is_untried_first:
            with self._seconds.time():
                untried = claim_untried()
            if untried:
                return untried, True
        if not capacity.is_retry_allowed:
            return [], False
        fresh = self._fresh(capacity.rows)
        lookback = self.lookback.seconds(now=began)
        with self._seconds.time():
            batch = claim(limit=capacity.rows, fresh=fresh, lookback_seconds=lookback)
        if not batch and fresh == capacity.rows:
            return [], True  # this claim was only for first attempts, and retries may be due
        # If only retries are due, the share of first attempts stays empty, but more rows may be due.
        least = capacity.rows - fresh if lookback is None else capacity.rows
        is_full = bool(batch) and len(batch) >= least
        if fresh < capacity.rows:  # so the last row of a full batch is one of the longest due
            self.lookback.note_claim(
                is_whole=lookback is None,
                began_at=began,
                ended_at=time.monotonic(),
                age_seconds=batch[-1].age_seconds if is_full else 0.0,
            )
        return batch, is_full

    def _fresh(self, rows: int) -> int:
        """Return how many of `rows` are fresh ones. The remainder counts for the next claim."""
        self._fresh_credit += rows * FRESH_SHARE
        fresh = min(int(self._fresh_credit), rows)
        self._fresh_credit -= fresh
        return fresh
