"""Dead letters are grouped by the cause of their last error, however many there are."""

from __future__ import annotations

import uuid

import pytest

from notifications.delivery.drain import poll
from notifications.failure_causes import COUNT_LIMIT, FailureCause, dead_causes, fill_fingerprints
from notifications.models import EmailNotification
from outbox.delivery.rows.fingerprint import fingerprint_of
from outbox.delivery.rows.outcomes import Outcome, Status, Verdict
from tests.factories import make_mail, make_mails

pytestmark = pytest.mark.django_db


def settle(mail: EmailNotification, outcome: Outcome) -> EmailNotification:
    token = uuid.uuid4()
    EmailNotification.objects.filter(id=mail.id).update(
        status="processing", claimed_at=mail.created_at, claim_token=token
    )
    mail.claim_token = token
    EmailNotification.objects.settle([(mail, outcome)])
    mail.refresh_from_db()
    return mail


def refused(text: str) -> Outcome:
    return Outcome(Verdict.PERMANENT, "sendgrid", code="400", text=text)


def test_settling_an_error_writes_the_fingerprint_of_its_two_columns():
    mail = settle(make_mail(), refused("no such user ann@example.com"))
    assert mail.status == Status.DEAD_LETTERED
    assert mail.error_fingerprint == fingerprint_of(provider=mail.provider, error=mail.last_error)


def test_an_outcome_without_an_attempt_keeps_it_and_an_acceptance_clears_it():
    mail = settle(make_mail(), Outcome(Verdict.TRANSIENT, "sendgrid", code="503", text="busy"))
    known = mail.error_fingerprint
    assert known
    assert settle(mail, Outcome(Verdict.EXHAUSTED)).error_fingerprint == known
    assert mail.status == Status.DEAD_LETTERED
    assert settle(mail, Outcome(Verdict.ACCEPTED, "sendgrid", "id")).error_fingerprint is None


def test_groups_come_the_largest_first_with_their_oldest_and_newest():
    many = [settle(make_mail(), refused(f"no such user {n}@example.com")) for n in range(3)]
    one = settle(make_mail(), refused("the subject is required"))
    settle(make_mail(), Outcome(Verdict.ACCEPTED, "sendgrid", "id"))
    assert dead_causes(EmailNotification.objects.all()) == [
        FailureCause(many[0].error_fingerprint, 3, many[0].id, many[2].id),
        FailureCause(one.error_fingerprint, 1, one.id, one.id),
    ]


def test_the_dead_letters_of_the_release_before_are_grouped_by_the_next_poll():
    old = make_mail(
        status=Status.DEAD_LETTERED, provider="sendgrid", last_error="400 no such user 7@example.com"
    )
    new = settle(make_mail(), refused("no such user 8@example.com"))
    assert [cause.count for cause in dead_causes(EmailNotification.objects.all())] == [1]
    poll()
    assert dead_causes(EmailNotification.objects.all()) == [
        FailureCause(new.error_fingerprint, 2, old.id, new.id)
    ]
    assert fill_fingerprints(EmailNotification.objects.all(), limit=500) == 0


def test_a_count_stops_at_its_limit():
    make_mails(COUNT_LIMIT + 500, status="dead_lettered")
    EmailNotification.objects.dead().update(error_fingerprint="a" * 16)
    (cause,) = dead_causes(EmailNotification.objects.all())
    assert cause.count == COUNT_LIMIT + 1
