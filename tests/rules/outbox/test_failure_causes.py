"""Dead letters are grouped by the cause of their last error, however many there are."""

from __future__ import annotations

import time

import pytest

from notifications import failure_causes
from notifications.failure_causes import FailureCause, cause_of_row
from tests.kit.mails import make_mail, make_mails
from tests.kit.words import EmailNotification, dead_causes

pytestmark = pytest.mark.django_db
ONE_CAUSE = [
    (
        "550 5.1.1 <ann@example.com>: Recipient address rejected: User unknown",
        "550 5.1.1 <bob.smith+7@mail.example.org>: Recipient address rejected: User unknown",
    ),
    (
        "552 5.2.2 Mailbox full a12-20020a170902b09200b001d8d0f7 - gsmtp",
        "552 5.2.2 Mailbox full q9-30020a170902c18400b003a7c1e2 - gsmtp",
    ),
    (
        "ReadTimeout Pool(host='api.sendgrid.com', port=443): Read timed out. (read timeout=10)",
        "ReadTimeout Pool(host='api.eu.sendgrid.com', port=80): Read timed out. (read timeout=9)",
    ),
    (
        "554 5.7.1 Service unavailable; Client host [192.0.2.10] blocked using zen.spamhaus.org",
        "554 5.7.1 Service unavailable; Client host [198.51.100.7] blocked using zen.spamhaus.org",
    ),
    (
        "429 daily_quota_exceeded: 200 of 200 sent, again at 2026-11-22T00:00:00Z",
        "429 daily_quota_exceeded: 100 of 100 sent, again at 2026-11-23 07:30",
    ),
    (
        "Timeout request 0191c0de-0000-7000-8000-000000000001 took 10.2 s",
        "Timeout request 0191c0de-0000-7000-8000-00000000abcd took 11 s",
    ),
]
TWO_CAUSES = [
    ("550 5.1.1 no", "550 5.7.1 no"),
    ("550 no", "554 no"),
    ("422 406: inactive recipient", "422 300: invalid e-mail request"),
    ("400 Does not contain a valid address.", "400 The subject is required."),
]


def dead(error: str, provider: str = "smtp") -> EmailNotification:
    return make_mail(status="dead_lettered", last_error=error, provider=provider)


@pytest.mark.parametrize(("text", "other"), ONE_CAUSE)
def test_numbers_ids_addresses_and_times_make_no_difference(text, other):
    old, new = dead(text), dead(other)
    (cause,) = dead_causes()
    assert cause == FailureCause(cause.cause, 2, old.id, new.id)


@pytest.mark.parametrize(("text", "other"), TWO_CAUSES)
def test_another_code_or_another_text_makes_one(text, other):
    dead(text), dead(other)
    assert [cause.count for cause in dead_causes()] == [1, 1]


def test_another_provider_makes_one():
    dead("no", "ses"), dead("no", "smtp")
    assert len(dead_causes()) == 2


def test_groups_come_the_largest_first_and_a_filter_finds_the_same_rows():
    make_mail(status="sent", last_error="")
    single = dead("the subject is required")
    many = [dead(f"no such user {n}@example.com") for n in range(3)]
    causes = dead_causes()
    assert [(cause.count, cause.oldest, cause.newest) for cause in causes] == [
        (3, many[0].id, many[2].id),
        (1, single.id, single.id),
    ]
    rows = EmailNotification.objects.dead().annotate(cause=cause_of_row()).filter(cause=causes[0].cause)
    assert {mail.id for mail in rows} == {mail.id for mail in many}


def test_only_the_newest_dead_letters_are_grouped(monkeypatch):
    monkeypatch.setattr(failure_causes, "COUNT_LIMIT", 10)
    make_mails(15, status="dead_lettered")
    assert [cause.count for cause in dead_causes()] == [10]


def test_a_hostile_text_takes_no_long_time():
    started = time.monotonic()
    for character in ["a", "1", "a1", "-", ".", "a.", "@", "a@", "1:", "[", "1 ", "a.a "]:
        dead((character * 1000)[:1000])
    assert dead_causes()
    assert time.monotonic() - started < 30.0  # a regular expression that backtracks takes for ever
