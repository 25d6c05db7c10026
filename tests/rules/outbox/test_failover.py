"""Two providers: a mail goes to the next only where the first certainly did not take it."""

from __future__ import annotations

import datetime as dt
import time

import pytest
from django.db.models.functions import Now

from notifications.delivery import process
from tests.kit.mails import due_now, let_others_through, make_mail, make_mails, statuses
from tests.kit.words import EmailNotification, State, Status
from tests.kit.words import drain as delivery
from tests.providers.conftest import provider

__all__ = ["provider"]
pytestmark = pytest.mark.django_db(transaction=True)

#: Those in flight, and those that took a freed slot before the fifth failure opened the breaker.
ASKED = 5 + 32


@pytest.fixture
def two(provider, settings, valkey_url):
    """SendGrid, then Resend; a process that has sent nothing before."""
    settings.EMAIL_PROVIDERS = ["sendgrid", "resend"]
    settings.EMAIL_RATE_LIMIT = 0
    settings.BREAKER_OPEN_SECONDS = 0.5
    process.start_anew()
    yield provider
    process.start_anew()


@pytest.mark.parametrize("status", [500, 503, 429, 401])
def test_what_the_first_did_not_take_goes_to_the_second_at_once_and_none_to_both(two, status):
    two.fail(kind="status", status=status, provider="sendgrid")
    make_mails(100)
    delivery.drain_emails()
    assert statuses() == {"sent": 100}
    assert {mail.provider for mail in two.mails} == {"resend"}
    assert {accepted for _, accepted in two.mailbox.counts().values()} == {1}
    assert two.stats()["requests_by_provider"]["sendgrid"] <= ASKED


def test_a_mail_that_hangs_at_the_first_keeps_its_hold_and_the_rest_go_over(two, settings):
    settings.BREAKER_OPEN_SECONDS = 30
    process.start_anew()
    two.fail(kind="hang", seconds=3, provider="sendgrid")
    make_mails(100)
    delivery.drain_emails()
    held = EmailNotification.objects.filter(status=Status.FAILED)
    assert 5 <= held.count() <= ASKED and held.count() == two.stats()["answers"]["hang"]
    assert statuses()["sent"] == 100 - held.count()
    assert all(mail.errors[-1]["outcome"] == "ambiguous" for mail in held)
    assert not held.filter(next_attempt_at__lt=Now() + dt.timedelta(seconds=100)).exists()
    assert {accepted for _, accepted in two.mailbox.counts().values()} == {0, 1}


def test_a_mail_that_the_first_refuses_for_good_is_not_shown_to_the_second(two):
    two.fail(kind="status", status=400, provider="sendgrid")
    make_mail()
    delivery.drain_emails()
    assert statuses() == {"dead_lettered": 1}
    assert "resend" not in two.stats()["requests_by_provider"]


def test_the_first_is_used_again_when_a_probe_has_succeeded(two):
    two.fail(kind="status", status=503, provider="sendgrid")
    make_mails(10)
    delivery.drain_emails()
    two.heal()
    state = {view.provider: view.state for view in process.gate().read_providers()}
    assert state == {"sendgrid": State.OPEN, "resend": State.CLOSED}
    time.sleep(0.55)
    make_mails(10)
    delivery.drain_emails()
    assert statuses() == {"sent": 20}
    assert process.gate().read_providers()[0].state is State.CLOSED
    assert two.stats()["requests_by_provider"]["sendgrid"] > 5


def test_with_all_open_rows_stay_due_and_nobody_is_asked(two, settings):
    settings.BREAKER_OPEN_SECONDS = 30
    two.fail(kind="status", status=503)
    make_mails(100)
    delivery.drain_emails()
    asked = two.stats()["requests"]
    assert asked <= 2 * (5 + 32)
    for _ in range(20):
        delivery.drain_emails()
    assert set(statuses()) <= {"pending", "failed"}
    assert EmailNotification.objects.filter(retry_count__gt=0).count() == 0
    assert two.stats()["requests"] == asked


def test_the_failures_that_opened_it_use_up_no_retry_and_the_next_probe_takes_another_mail(two, settings):
    settings.EMAIL_PROVIDERS = ["sendgrid"]
    settings.RETRY_DELAYS = [60.0]
    process.start_anew()
    two.fail(kind="status", status=503)
    make_mails(6)
    delivery.drain_emails()
    tried = set(EmailNotification.objects.exclude(errors=[]).values_list("id", flat=True))
    assert len(tried) >= 5
    assert not EmailNotification.objects.filter(retry_count__gt=0).exists()
    assert not EmailNotification.objects.due().filter(id__in=tried).exists()


def test_a_mail_that_fails_alone_while_others_are_taken_uses_up_its_retries(two, settings):
    settings.EMAIL_PROVIDERS = ["sendgrid"]
    process.start_anew()
    two.fail(kind="status", status=503, to="down@")
    bad = make_mail(recipient_email="down@example.com", max_retries=2)
    delivery.drain_emails()
    for _ in range(3):
        let_others_through()
        delivery.drain_emails()
    row = EmailNotification.objects.get(id=bad.id)
    assert (row.status, row.retry_count, len(row.errors)) == (Status.DEAD_LETTERED, 2, 3)
    assert row.last_error.startswith("503")


def test_a_mail_that_fails_while_no_other_gets_through_uses_up_no_retry(two, settings):
    settings.EMAIL_PROVIDERS = ["sendgrid"]
    process.start_anew()
    two.fail(kind="status", status=503)
    bad = make_mail(max_retries=1)
    for _ in range(4):
        due_now()
        delivery.drain_emails()
    row = EmailNotification.objects.get(id=bad.id)
    assert (row.status, row.retry_count, len(row.errors)) == (Status.FAILED, 0, 4)


def test_a_forced_provider_is_left_alone(two):
    process.gate().force("sendgrid", "open", reason="test")
    make_mails(5)
    delivery.drain_emails()
    assert {mail.provider for mail in two.mails} == {"resend"}
