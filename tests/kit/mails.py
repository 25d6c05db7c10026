"""E-mails in the table, and attempts around their failures, recorded without waiting."""

from __future__ import annotations

import dataclasses
import datetime as dt
import secrets
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now
from django.utils.text import get_text_list

from local.sandbox import Sandbox
from notifications.log import EmailChange
from notifications.states.transitions import EndedBy, Transition
from tests.kit.waiting import PATIENCE
from tests.kit.words import (
    PROVIDERS,
    Claimed,
    EmailNotification,
    Outcome,
    Status,
    Verdict,
    claim,
    drain,
    id_floor,
    new_id,
    read_database_time,
    render_again,
    settle,
)

#: What ended an e-mail of a test, unless it says another reason.
ENDED_BY = {
    Status.DEAD_LETTERED: EndedBy.PROVIDER,
    Status.DISCARDED: EndedBy.PERSON,
    Status.SUPPRESSED: EndedBy.SUPPRESSED,
}


def not_in(act: Transition) -> str:
    """Return the end of the refusal of an act in another state."""
    return f"not {get_text_list([*map(str, act.before)], 'or')}"


@pytest.fixture
def sandbox(settings: Any, valkey_url: str) -> Iterator[Sandbox]:
    """Replace the provider, whose answers may take long, and forget what this process has sent."""
    with Sandbox() as sandbox:
        settings.ANYMAIL = settings.ANYMAIL | {
            "SENDGRID_API_URL": sandbox.api_url,
            "REQUESTS_TIMEOUT": (PATIENCE, PATIENCE),
        }
        drain.reset()
        PROVIDERS["sendgrid"].close()
        yield sandbox
        PROVIDERS["sendgrid"].close()


def make_mail(**fields: Any) -> EmailNotification:
    """Insert a due e-mail. `status` also sets the columns that the table's constraints require."""
    values: dict[str, Any] = {
        "order_id": new_id(),
        "event_type": "order.paid",
        "recipient_email": "alice@example.com",
        "to_name": "Alice",
        "from_email": "orders@example.com",
        "subject": "Your order",
        "body": "<p>Paid.</p>",
        "body_text": "Paid.",
        "idempotency_key": str(new_id()),
        "correlation_id": "test",
    }
    status = fields.get("status", Status.PENDING)
    values["ended_by"] = ENDED_BY.get(status, "")
    if status == Status.SENT:
        values["sent_at"] = Now()
    if status == Status.PROCESSING:
        values |= {"claimed_at": Now(), "claim_token": uuid.uuid4()}
    mail = EmailNotification.objects.create(**values | fields)
    mail.refresh_from_db()
    return mail


def make_mails(count: int, *, status: str = "pending", age: float = 1.0) -> None:
    """Insert many e-mails in one statement, due `age` seconds ago, with growing ids of now."""
    make_mails_of({status: count}, age=age)


def make_mails_of(counts: dict[str, int], *, age: float = 1.0, sent_now: int | None = None) -> None:
    """Insert e-mails of several statuses in one statement, as `make_mails` does.

    If `sent_now` is given, only so many of the sent ones were sent now, and the others two hours ago.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO email_notifications (id, status, retry_count, max_retries, next_attempt_at,
                ended_by, last_error, errors, provider, provider_message_id, correlation_id, traceparent,
                sent_at, event_type, recipient_email, to_name, from_email, locale, subject, body, body_text,
                idempotency_key, order_id)
            SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0')
                    || '7' || substr(place, 1, 3)
                    || '8' || substr(place, 4, 3) || substr(md5(random()::text), 1, 12))::uuid,
                status, 0, 3, now() - %(age)s * interval '1 second',
                CASE status WHEN 'dead_lettered' THEN 'provider' WHEN 'discarded' THEN 'person'
                    WHEN 'suppressed' THEN 'suppressed' ELSE '' END, '', '[]', '', '', 'c' || n, '',
                CASE WHEN status = 'sent' THEN
                    now() - CASE WHEN n > %(sent_now)s THEN interval '2 hours' ELSE interval '0' END
                END, 'order.paid',
                'user' || n || '@example.com', 'User', 'orders@example.com', 'en', 'Your order',
                '<p>Paid.</p>', 'Paid.', n::text, gen_random_uuid()
            FROM unnest(%(statuses)s::text[], %(counts)s::int[]) WITH ORDINALITY
                AS kinds (status, count, kind),
                generate_series(1, count) AS n,
                LATERAL (SELECT lpad(to_hex(kind << 20 | n), 6, '0') AS place) AS places
            """,
            {
                "statuses": list(counts),
                "counts": list(counts.values()),
                "age": age,
                "sent_now": max(counts.values()) if sent_now is None else sent_now,
            },
        )


def statuses() -> dict[str, int]:
    """Return the number of e-mails in each status."""
    counts: dict[str, int] = {}
    for status in EmailNotification.objects.values_list("status", flat=True):
        counts[status] = counts.get(status, 0) + 1
    return counts


def claim_one() -> Claimed:
    """Claim the only due e-mail."""
    (email,) = claim(limit=1)
    return email


def make_claimed(**fields: Any) -> Claimed:
    """Insert a due e-mail and claim it. No other may be due."""
    make_mail(**fields)
    return claim_one()


def as_claimed(row: EmailNotification) -> Claimed:
    """Return a claim of a row that has its token, without a claim of it."""
    values: dict[str, Any] = {
        field.name: getattr(row, field.name)
        for field in dataclasses.fields(Claimed)
        if hasattr(row, field.name)
    }
    values["claim_token"] = row.claim_token or uuid.uuid4()
    return Claimed(**values, age_seconds=0.0, stored_seconds=None, account={})


def settled(email: Claimed, verdict: Verdict, **fields: Any) -> list[EmailChange]:
    """Settle a claimed e-mail with an outcome. Return the changes, none if the claim is lost."""
    return settle([(email, Outcome(verdict, **fields))])


def rendered_again(*mails: EmailNotification) -> tuple[list[EmailNotification], list[str]]:
    """Render e-mails again. Return the copies and the reasons of the refusals."""
    with transaction.atomic():
        done, refusals = render_again(ids=[mail.id for mail in mails])
    return [EmailNotification.objects.get(id=replaced.copy_id) for replaced in done], [
        replaced.reason for replaced in refusals
    ]


def drained() -> dict[str, int]:
    """Send what is due, as a worker does. Return the number of e-mails in each status."""
    drain.drain_emails()
    return statuses()


def due_now() -> None:
    """Make every waiting e-mail due."""
    EmailNotification.objects.filter(status__in=["pending", "failed"]).update(
        next_attempt_at=Now() - dt.timedelta(seconds=1)
    )


def accept_others(
    count: int,
    *,
    ago: float,
    until: float = 0.0,
    provider: str = "sendgrid",
    errors: Sequence[dict[str, Any]] = (),
) -> None:
    """Insert e-mails written evenly from `ago` to `until` seconds ago: accepted, or failed with `errors`.

    They tell whose the failures of others are.
    """
    now = read_database_time()
    times = [now - dt.timedelta(seconds=ago + (until - ago) * number / count) for number in range(count)]
    emails = [
        EmailNotification(
            id=uuid.UUID(int=id_floor(at).int + secrets.randbits(64)),
            order_id=new_id(),
            event_type="order.paid",
            recipient_email="other@example.com",
            subject="other",
            idempotency_key=str(new_id()),
            provider=provider,
            status=Status.FAILED if errors else Status.SENT,
            created_at=at,
            sent_at=None if errors else at,
            errors=[*errors],
            next_attempt_at=now + dt.timedelta(days=1),
        )
        for at in times
    ]
    EmailNotification.objects.bulk_create(emails, batch_size=1000)
