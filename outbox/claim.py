"""Claim due rows, and take back claims whose worker is dead or stuck.

Sent e-mails leave dead entries in the index of due rows. While a session holds an older snapshot (a dump, a
forgotten transaction), vacuum cannot remove them, and each claim steps over all of them. A drain therefore
remembers how long its last claimed e-mail had been due, and starts its next claims there (`Lookback`).

Such a claim can miss an e-mail that got its place in the queue late: its transaction took long to commit, or
another process gave it back. A claim of everything finds it. That happens at each poll, after this process
gave something back, and otherwise so rarely that these claims take a twentieth of the time.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import random
import time
import uuid
from operator import itemgetter

from django.db import connection, models, transaction
from django.db.models import F
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from notifications import metrics
from notifications.changes.settle import settle_locked
from notifications.log import EmailChange
from notifications.models import CONTENT, EmailNotification
from notifications.states.claimed import Claimed
from notifications.states.outcomes import LEASE_EXPIRED, Outcome, Verdict
from notifications.states.transitions import CLAIM, RECOVER, list_in_sql
from outbox.gate.gate import Capacity
from outbox.metrics import CLAIMS
from runtime.database.postgres.cursor import Prepared

#: During a backlog, this share of the claimed rows are the newest first attempts.
FRESH_SHARE = 1 / 4
#: Look back so much further than to the last claimed row: transactions may commit late.
SLACK_SECONDS = 2.0
#: The pause after a claim of everything, as a multiple of the claim's duration, and its maximum in seconds.
PAUSE_FACTOR, LONGEST_PAUSE_SECONDS = 20.0, 30.0
#: A claim with a lookback takes as the newest rows those that became due within this time.
FRESH_SECONDS = 5.0
#: A pause of the delivery (runtime.models.pauses) stops claims and the recovery of expired claims.
NOT_PAUSED = "NOT EXISTS (SELECT FROM pauses WHERE part = 'delivery')"
#: The states of due rows, as SQL.
_DUE = list_in_sql(CLAIM.before)
#: The fields of `Claimed` that are columns. The others are computed after them.
_FIELDS = [field.name for field in dataclasses.fields(Claimed)]
_COLUMNS = ", ".join(f"row.{name}" for name in _FIELDS[: _FIELDS.index("claimed_at") + 1])
_ERRORS, _ACCOUNT = _FIELDS.index("errors"), _FIELDS.index("account")


def _build_claim(picked: str) -> Prepared:
    """Return the statement that moves the rows of the CTE `picked` to `processing`.

    `picked` has the columns id, next_attempt_at, updated_at and place. A row that has not changed since its
    insert (`updated_at` is `created_at`) is claimed for the first time. The statement also reads the account
    of the e-mail's profile; the sending threads read no table.

    A plan without values can use the index of due rows only if the states and the pause are written into the
    statement. Without values, PostgreSQL also expects a LIMIT to take a tenth of the due rows, and would join
    so many with the whole table. The array makes it read each row by its id.
    """
    return Prepared(
        f"""
        WITH {picked}
        UPDATE email_notifications AS row SET status = '{CLAIM.to}', claimed_at = statement_timestamp(),
            claim_token = %(token)s, updated_at = statement_timestamp()
        FROM picked WHERE row.id = picked.id AND row.id = ANY (ARRAY(SELECT id FROM picked))
        RETURNING picked.place, {_COLUMNS},
            extract(epoch FROM statement_timestamp() - picked.next_attempt_at)::float8 AS age_seconds,
            CASE WHEN picked.updated_at = row.created_at THEN
                extract(epoch FROM statement_timestamp() - row.created_at)::float8 END AS stored_seconds,
            (SELECT account FROM mail_profiles WHERE source = row.profile) AS account
        """  # noqa: S608 - only constants are inserted
    )


def _longest_and_newest(*, since: str = "", newest_since: str = "") -> str:
    """Return the CTE `picked` of `claim`, which leaves out rows that were due before these bounds."""
    # A full `longest` means a backlog. Only then take rows of `newest`, and put them first in the batch,
    # which is sent in this order. MATERIALIZED locks each row once, in the order of the query.
    return f"""
        longest AS MATERIALIZED (
            SELECT id, next_attempt_at, updated_at FROM email_notifications
            WHERE status IN ({_DUE}) AND next_attempt_at <= statement_timestamp() {since}
              AND {NOT_PAUSED}
            ORDER BY next_attempt_at LIMIT %(longest)s FOR UPDATE SKIP LOCKED
        ), newest AS MATERIALIZED (
            SELECT id, next_attempt_at, updated_at FROM email_notifications
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
        untried AS MATERIALIZED (
            SELECT id, next_attempt_at, updated_at, order_id, order_version, shop_copy_of
            FROM email_notifications
            WHERE status = 'pending' AND retry_count = 0 AND errors = '[]'::jsonb AND resent_at IS NULL
              AND next_attempt_at <= statement_timestamp() AND {NOT_PAUSED}
            ORDER BY next_attempt_at DESC LIMIT 1 FOR UPDATE SKIP LOCKED
        ), first AS MATERIALIZED (
            SELECT row.id, row.next_attempt_at, row.updated_at
            FROM untried JOIN email_notifications AS row
                ON row.order_id = untried.order_id AND row.order_version < untried.order_version
                AND (row.shop_copy_of IS NULL) = (untried.shop_copy_of IS NULL)
            WHERE row.status IN ({_DUE}) AND row.resent_at IS NULL
            ORDER BY row.order_version LIMIT 1 FOR UPDATE OF row SKIP LOCKED
        ), picked AS (
            SELECT *, 0 AS place FROM first
            UNION ALL
            SELECT id, next_attempt_at, updated_at, 1 AS place FROM untried
        )
        """)  # noqa: S608 - only constants are inserted


def claim(*, limit: int, fresh: int = 0, lookback_seconds: float | None = None) -> list[Claimed]:
    """Claim up to `limit` due e-mails for the caller alone in one statement, and commit.

    Claim those that have been due longest, and during a backlog also `fresh` of the newest `pending` ones
    that have used no retry.

    With `lookback_seconds`, leave out those that have been due for longer, and take as the newest those of
    the last `FRESH_SECONDS` (see `Lookback`). Then the longest due ones fill the batch.
    """
    if lookback_seconds is None:
        return _claim(CLAIM_ALL, limit=limit, longest=limit - fresh, fresh=fresh)
    newest = min(FRESH_SECONDS, lookback_seconds)
    values = {"lookback": lookback_seconds, "newest_lookback": newest}
    return _claim(CLAIM_RECENT, limit=limit, longest=limit, fresh=fresh, **values)


def claim_untried() -> list[Claimed]:
    """Claim the newest due e-mail that was never tried, if one exists, to test a provider.

    If earlier ones of its order go first, also claim the earliest, whether it is due or not. The first of two
    e-mails is sent in place of the second, which has to wait.
    """
    emails = _claim(CLAIM_UNTRIED)
    for email in emails[:-1]:
        email.is_substitute = True
    return emails


def _claim(statement: Prepared, **values: float) -> list[Claimed]:
    """Move rows to `processing` under a new token. A claim is not logged: the row shows it."""
    with CLAIMS.labels(EmailNotification._meta.db_table).time(), connection.cursor() as cursor:
        cursor.execute(statement, {**values, "token": uuid.uuid4()})
        rows = sorted(cursor.fetchall(), key=itemgetter(0))
    emails = []
    for _, *columns in rows:
        email = Claimed(*columns)
        email.errors, email.account = json.loads(columns[_ERRORS]), json.loads(columns[_ACCOUNT] or "{}")
        metrics.CHANGES.labels(email.event_type, CLAIM.to.value).inc()
        emails.append(email)
    return emails


def claim_batch(capacity: Capacity, lookback: Lookback) -> tuple[list[Claimed], bool]:
    """Claim for `capacity`. Return the e-mails, and whether more may be due."""
    began = time.monotonic()
    if capacity.is_untried_first and (untried := claim_untried()):
        return untried, True
    if not capacity.is_retry_allowed:
        return [], False
    # Rounded at random: of claims of one row, a quarter are for first attempts.
    fresh = int(capacity.rows * FRESH_SHARE + random.random())  # noqa: S311 - guards nothing
    lookback_seconds = lookback.seconds(now=began)
    batch = claim(limit=capacity.rows, fresh=fresh, lookback_seconds=lookback_seconds)
    if not batch and fresh == capacity.rows:
        return [], True  # this claim was only for first attempts, and retries may be due
    # If only retries are due, the share of first attempts stays empty, but more rows may be due.
    least = capacity.rows - fresh if lookback_seconds is None else capacity.rows
    is_full = bool(batch) and len(batch) >= least
    if fresh < capacity.rows:  # so the last row of a full batch is one of the longest due
        lookback.note_claim(
            is_whole=lookback_seconds is None,
            began_at=began,
            ended_at=time.monotonic(),
            age_seconds=batch[-1].age_seconds if is_full else 0.0,
        )
    return batch, is_full


def recover(*, lease_seconds: float, limit: int = 500) -> list[EmailChange]:
    """Take back up to `limit` claims older than `lease_seconds`: their worker is dead or stuck.

    Such an attempt is ambiguous: the message may have been sent, or may have killed the worker. The e-mail is
    held, or becomes a dead letter if it has lost more workers than it has retries. Take none back while the
    delivery is paused.
    """
    text = f"no outcome within {lease_seconds:g} s"
    outcome = Outcome(Verdict.AMBIGUOUS, code=LEASE_EXPIRED, text=text)
    rows = EmailNotification.objects.filter(
        _not_paused(), status__in=RECOVER.before, claimed_at__lt=Now() - dt.timedelta(seconds=lease_seconds)
    )
    with transaction.atomic():
        expired = rows.select_for_update(skip_locked=True).defer(*CONTENT).order_by("id")[:limit]
        return settle_locked([(row, outcome) for row in expired])


def next_due_in(*, lookback_seconds: float | None = None) -> float | None:
    """Return the seconds until the earliest waiting e-mail is due, or None if none waits.

    Leave out those that have been due for more than `lookback_seconds`. While the delivery is paused, none
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
