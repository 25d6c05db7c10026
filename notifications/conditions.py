"""The conditions of e-mails: dead letters, a backlog, overdue ones, and claims that nothing recovers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

from django.conf import settings

from notifications.content.editing import Trouble, find_troubles
from notifications.models import FIRST_DUE, OWN_ORDERS, WAITS_SINCE, EmailNotification, text_name
from notifications.states.outcomes import Verdict
from notifications.states.transitions import DUE_STATES, UNFINISHED, list_in_sql
from notifications.sums import BY_MINUTE
from runtime import conditions
from runtime.conditions import DAY, HOUR, Alert, Condition, Counted, Measurement, Query, Row, positive
from runtime.models import Pause
from runtime.telemetry.metrics import Values, gauge

#: The label of these metrics.
TABLE = EmailNotification._meta.db_table
#: A row is held if a provider may have accepted its last attempt and the next attempt is not due.
_SELECT = """
    SELECT * FROM (
        SELECT count(*) FILTER (WHERE status = 'pending') AS pending,
            count(*) FILTER (WHERE status = 'failed') AS failed, count(*) FILTER (WHERE held) AS held,
            extract(epoch FROM statement_timestamp() - min(next_attempt_at))::float8 AS due_seconds,
            extract(epoch FROM statement_timestamp() - min(since) FILTER (WHERE NOT held))::float8
                AS waiting_seconds,
            count(*) FILTER (WHERE NOT held AND since < statement_timestamp() - interval '1 hour')
                AS waiting_overdue,
            count(*) FILTER (
                WHERE NOT held AND waits_since <= statement_timestamp() - {warn} * interval '1 s') AS ageing,
            extract(epoch FROM statement_timestamp() - min(waits_since) FILTER (WHERE NOT held))::float8
                AS age_seconds
        FROM (
            SELECT status, next_attempt_at, {first_due} AS since,
                {waits_since} AS waits_since, status = 'failed'
                AND next_attempt_at > statement_timestamp() AND errors->-1->>'outcome' = 'ambiguous' AS held
            FROM email_notifications WHERE status IN ({due})
            ORDER BY next_attempt_at LIMIT {most}
        ) AS row
    ) AS waiting, (
        SELECT count(*) AS processing,
            extract(epoch FROM statement_timestamp() - min(claimed_at))::float8 AS claimed_seconds,
            extract(epoch FROM statement_timestamp() - min(since))::float8 AS processing_seconds,
            count(*) FILTER (WHERE since < statement_timestamp() - interval '1 hour') AS processing_overdue
        FROM (
            SELECT claimed_at, {first_due} AS since
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
    waiting_seconds: float = 0.0  # since the oldest row that is not held was first due
    waiting_overdue: int = 0  # those of them after an hour
    ageing: int = 0  # those that soon become dead letters as too old
    age_seconds: float = 0.0  # of the oldest row that is not held (notifications.changes.age)
    processing: int = 0
    claimed_seconds: float = 0.0  # since the oldest current claim
    processing_seconds: float = 0.0  # since the oldest row in processing was first due
    processing_overdue: int = 0  # those after an hour
    dead_lettered: int = 0

    @property
    def unfinished_seconds(self) -> float:
        """Seconds since the oldest unfinished row that is neither held nor dead was first due."""
        return max(self.waiting_seconds, self.processing_seconds)

    @property
    def left_seconds(self) -> float:
        """Seconds until the oldest row becomes a dead letter."""
        return max(0.0, settings.EMAIL_MAX_AGE_HOURS * HOUR - self.age_seconds)


def _warning_seconds() -> float:
    """Return the age at which people are warned: a day before the longest one, or half of it if later."""
    longest: float = settings.EMAIL_MAX_AGE_HOURS * HOUR
    return max(longest - DAY, longest / 2)


def _rows(rows: Sequence[Row], _: dt.datetime) -> Rows:
    return Rows(**positive(rows[0]))


UNFINISHED_EMAILS: Query[Rows] = Query(
    name="unfinished e-mails",
    select=lambda _: _SELECT.format(
        most=conditions.MOST,
        due=list_in_sql(DUE_STATES),
        first_due=FIRST_DUE,
        waits_since=WAITS_SINCE,
        warn=_warning_seconds(),
    ),
    read=_rows,
)

#: How long a refused sender is reported whose e-mails another provider sends.
_RECENT = dt.timedelta(minutes=10)
#: An e-mail whose sender was refused is tried again sooner than after so long.
_LATELY = dt.timedelta(minutes=20)
#: The profiles with a sender that a provider refused at the last attempt of a waiting e-mail, or of late, and
#: of which it has accepted nothing since. A test follows each refusal within a minute. The search for an
#: acceptance therefore reads the e-mails of few minutes, by the index of the sums: OFFSET 0 keeps PostgreSQL
#: from reading the whole table for a hash.
_REFUSED = """
    SELECT profile, max(from_email) AS sender, string_agg(DISTINCT provider, ', ') AS providers
    FROM (
        SELECT profile, from_email, entry->>'provider' AS provider,
            max((entry->>'at')::timestamptz) AS refused_at
        FROM (
            (SELECT profile, from_email, errors FROM email_notifications
             WHERE status IN ({due}) ORDER BY next_attempt_at LIMIT {most})
            UNION ALL
            (SELECT profile, from_email, errors FROM email_notifications
             WHERE errors <> '[]' AND (errors -> -1 ->> 'at') COLLATE "C" >= '{since}' LIMIT {most})
        ) AS row, LATERAL (SELECT errors -> -1 AS entry) AS last
        WHERE entry->>'outcome' = '{verdict}' GROUP BY 1, 2, 3
    ) AS refused
    WHERE NOT EXISTS (
        SELECT FROM email_notifications AS sent
        WHERE {sent_minute} >= '{lately}' AND {sent_minute} >= {refused_minute}
            AND sent.sent_at > refused.refused_at AND sent.provider = refused.provider
            AND sent.profile = refused.profile AND sent.from_email = refused.from_email
        OFFSET 0
    )
    GROUP BY profile
"""


REFUSED_SENDERS: Query[Sequence[Row]] = Query(
    name="refused senders",
    select=lambda now: _REFUSED.format(
        due=list_in_sql(DUE_STATES),
        most=conditions.MOST,
        since=(now - _RECENT).astimezone(dt.UTC).isoformat(),
        verdict=Verdict.SENDER_REFUSED,
        sent_minute=BY_MINUTE.format("sent.sent_at"),
        refused_minute=BY_MINUTE.format("refused.refused_at"),
        lately=(now - _LATELY).astimezone(dt.UTC).isoformat(),
    ),
    read=lambda rows, _: rows,
)

#: The end of an alert's description, for a state that makes e-mails too old.
HOW_MANY_AND_WHEN = (
    '{{ with query "max(orderpost_ageing_emails) > 0" }} {{ . | first | value }} e-mails become dead letters'
    '{{ with query "min(orderpost_ageing_left_seconds)" }}, the first in '
    "{{ . | first | value | humanizeDuration }}{{ end }}.{{ end }}"
)


def _in_words(seconds: float) -> str:
    number, unit = (seconds // 3600, "hour") if seconds >= 7200 else (seconds // 60, "minute")
    return f"{number:.0f} {unit}{'s' * (number != 1)}"


SENDER_REFUSED = Condition(
    code="EmailSenderRefused",
    place=45,
    source=REFUSED_SENDERS,
    measure=lambda rows: [
        Measurement(
            1,
            row["profile"] or OWN_ORDERS,
            {"sender": row["sender"] or settings.DEFAULT_FROM_EMAIL, "providers": row["providers"]},
        )
        for row in rows
    ],
    sentence="{providers} refuses {sender}, the sender of {subject}",
    do="verify it at the provider; the e-mails then go out, and those of other shops are not affected",
    alert=Alert("P2", "2m", "A provider refuses the sender of a shop, so that shop's e-mails wait."),
    page="notifications.mailprofile",
)
NEARLY_TOO_OLD = Condition(
    code="EmailNearlyTooOld",
    place=42,
    source=UNFINISHED_EMAILS,
    measure=lambda rows: [Measurement(rows.ageing, words={"left": _in_words(rows.left_seconds)})],
    paused_by=Pause.Part.DELIVERY,
    sentence="{number:e-mail becomes a dead letter|e-mails become dead letters, the first} in {left}",
    do="read the errors, and fix the cause in time; afterwards a person has to resend them",
    alert=Alert(
        "P2",
        "5m",
        "E-mails are within a day, or within half of `EMAIL_MAX_AGE_HOURS` if that is less, of becoming dead"
        " letters.",
        shows=HOW_MANY_AND_WHEN,
    ),
    page="notifications.emailnotification?status=pending",
)
DEAD_LETTERS = Condition(
    code="EmailDeadLetters",
    place=60,
    source=UNFINISHED_EMAILS,
    measure=lambda rows: [Measurement(rows.dead_lettered)],
    sentence="{number:dead letter|dead letters}",
    do="resend or give up, under Causes in the admin",
    alert=Alert("P3", "10m", "Providers refused e-mails, or these failed by themselves or became too old."),
)
BACKLOG = Condition(
    code="EmailBacklog",
    place=65,
    source=UNFINISHED_EMAILS,
    measure=lambda rows: [Measurement(rows.pending + rows.failed)],
    limit=1000,
    paused_by=Pause.Part.DELIVERY,
    sentence="{number:e-mail waits|e-mails wait} to be sent",
    do="compare the sends a second with EMAIL_RATE_LIMIT",
    alert=Alert("P2", "2m", "More than 1,000 e-mails wait for their first or a further attempt."),
    page="notifications.emailnotification?status=pending",
)
OVERDUE = Condition(
    code="EmailOverdue",
    place=70,
    source=UNFINISHED_EMAILS,
    measure=lambda rows: [
        Measurement(
            rows.unfinished_seconds,
            words={"overdue": Counted(rows.waiting_overdue + rows.processing_overdue)},
        )
    ],
    limit=HOUR,
    paused_by=Pause.Part.DELIVERY,
    sentence="{overdue:e-mail is|e-mails are} unfinished after an hour",
    do="read the errors, under E-mails in the admin",
    alert=Alert("P2", "1m", "An e-mail that is neither sent nor held is over an hour old."),
    page="notifications.emailnotification?status=pending",
)
#: The next poll recovers a crashed worker's claim. The alert waits for two of them.
PROCESSING_STUCK = Condition(
    code="EmailProcessingStuck",
    place=80,
    source=UNFINISHED_EMAILS,
    measure=lambda rows: [Measurement(rows.claimed_seconds)],
    limit=lambda _: max(300.0, settings.LEASE_SECONDS),
    paused_by=Pause.Part.DELIVERY,
    sentence="a claim is older than its lease, and no poll has recovered it",
    do="start beat and worker, or run `manage.py drain_outbox`",
    alert=Alert("P2", "2m", "A claim is older than five minutes and than its lease."),
    page="notifications.emailnotification?status=processing",
)
conditions.register(SENDER_REFUSED, NEARLY_TOO_OLD, DEAD_LETTERS, BACKLOG, OVERDUE, PROCESSING_STUCK)


def _by_status(rows: Rows) -> Values:
    return {(TABLE, str(status)): getattr(rows, status) for status in UNFINISHED}


conditions.show(
    gauge(
        "orderpost_unfinished",
        "rows `pending`, `failed`, `processing` or `dead_lettered`; the first two share one limit",
        ["table", "status"],
    ),
    UNFINISHED_EMAILS,
    _by_status,
)
conditions.show(
    gauge("orderpost_held", "`failed` rows that wait for a webhook", ["table"]),
    UNFINISHED_EMAILS,
    lambda rows: {TABLE: rows.held},
)
conditions.show(
    gauge("orderpost_oldest_unfinished_seconds", "age of the oldest row neither dead nor held", ["table"]),
    UNFINISHED_EMAILS,
    lambda rows: {TABLE: rows.unfinished_seconds},
)
conditions.show(
    gauge(
        "orderpost_ageing_emails",
        "rows that soon become dead letters as too old: those of *EmailNearlyTooOld*",
    ),
    UNFINISHED_EMAILS,
    lambda rows: rows.ageing,
)
conditions.show(
    gauge("orderpost_ageing_left_seconds", "until the first of the waiting e-mails is too old"),
    UNFINISHED_EMAILS,
    lambda rows: rows.left_seconds,
)
conditions.show(
    gauge("orderpost_oldest_processing_seconds", "age of the oldest present claim", ["table"]),
    UNFINISHED_EMAILS,
    lambda rows: {TABLE: rows.claimed_seconds},
)


def _outdated(rows: Sequence[Row], _: dt.datetime) -> Sequence[Measurement]:
    """Measure the published versions with sentences that do not fit the release, or the files, any more."""
    texts = []
    for row in rows:
        event_type, language = row["event_type"], row["locale"]
        if troubles := find_troubles(row["sentences"], event_type=event_type, language=language):
            name = text_name(source=row["source"], event_type=event_type, locale=language)
            examples = "; ".join(map(_compared, troubles[:3])) + "; …" * (len(troubles) > 3)
            subject = f"version {row['number']} of {name}"
            texts.append(Measurement(len(troubles), subject, {"examples": examples}))
    return texts


def _compared(trouble: Trouble) -> str:
    said = f'"{trouble["text"][:80]}" replaces "{trouble["original"][:80]}"'
    return f'{said}, which is now "{trouble["now"][:80]}"' if trouble["now"] else said


OUTDATED_TEXTS: Query[Sequence[Measurement]] = Query(
    name="outdated own sentences",
    select=lambda _: (
        """
        SELECT text.event_type, text.source, text.locale, version.number, version.sentences
        FROM email_texts AS text JOIN email_text_versions AS version
            ON version.text_id = text.id AND version.number = text.published
        ORDER BY 1, 2, 3
    """
    ),
    read=_outdated,
)
TEXT_OUTDATED = Condition(
    code="EmailTextOutdated",
    place=55,
    source=OUTDATED_TEXTS,
    measure=lambda texts: texts,
    sentence="{number:own sentence of {subject} does|own sentences of {subject} do}"
    " not fit this release ({examples})",
    do="compare and publish them, under Texts in the admin",
    alert=Alert("P3", "1m", "An e-mail's sentences changed for which the shop has own ones."),
    page="notifications.emailtext",
)
conditions.register(TEXT_OUTDATED)
