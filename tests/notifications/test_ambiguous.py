"""Answers that prove nothing: an e-mail is held, then goes to another provider, and always leaves."""

from __future__ import annotations

import datetime as dt
import json
import time

import pytest
from django.db.models.functions import Now
from django.test import Client

from notifications.delivery import drain as delivery
from notifications.delivery import process
from notifications.delivery.sending import REPEATS
from notifications.models import EmailNotification
from notifications.services import give_up, resend
from outbox.delivery.gate.breaker import State
from outbox.delivery.rows.attempts import time_of
from outbox.delivery.rows.outcomes import Status
from tests.factories import make_mail, make_mails, statuses
from tests.notifications.neighbours import due_now
from tests.notifications.providers.conftest import provider
from tests.notifications.test_failover import ASKED

__all__ = ["provider"]
pytestmark = pytest.mark.django_db(transaction=True)
HOLD = 120


@pytest.fixture
def two(provider, settings, valkey_url):
    """SendGrid, then Resend; a process that has sent nothing before."""
    settings.EMAIL_RATE_LIMIT = 0
    settings.AMBIGUOUS_HOLD_SECONDS = HOLD
    settings.WEBHOOKS_UNSIGNED = True
    # No provider hangs here, and a busy machine may take a second to answer.
    settings.ANYMAIL = settings.ANYMAIL | {"REQUESTS_TIMEOUT": (10, 10)}
    settings.EMAIL_CONNECT_TIMEOUT = settings.EMAIL_READ_TIMEOUT = 10
    configure(settings, "sendgrid", "resend")
    yield provider
    process.start_anew()


def configure(settings, *providers: str) -> None:
    """Restart the process with other EMAIL_PROVIDERS."""
    settings.EMAIL_PROVIDERS = list(providers)
    process.start_anew()


def let_the_hold_pass() -> None:
    """Date all attempts back by the hold, and make all e-mails due."""
    for mail in EmailNotification.objects.exclude(errors=[]):
        for entry in mail.errors:
            entry["at"] = (time_of(entry) - dt.timedelta(seconds=HOLD)).isoformat()
        mail.save(update_fields=["errors"])
    due_now()


def asked(two) -> dict[str, int]:
    return {name: count for name, count in two.stats()["requests_by_provider"].items() if count}


def accepted(two) -> set[int]:
    """How often a provider took each e-mail."""
    return {taken for _, taken in two.mailbox.counts().values()}


def report(mail: EmailNotification, kind: str = "processed") -> None:
    """Post what SendGrid knows of an e-mail."""
    event = {
        "event": kind,
        "timestamp": int(time.time()),
        "sg_message_id": "m1",
        "notification_id": str(mail.id),
    }
    body = json.dumps([event | {"email": mail.recipient_email}])
    assert Client().post("/webhooks/sendgrid", body, "application/json").status_code == 200


@pytest.mark.parametrize("status", [502, 504, 520, 524])
def test_a_gateways_answers_open_the_breaker_and_only_the_e_mails_asked_for_wait(two, status):
    two.fail(kind="status", status=status, provider="sendgrid")
    make_mails(100)
    delivery.drain_emails()
    held = EmailNotification.objects.filter(status=Status.FAILED)
    assert 5 <= held.count() <= ASKED and held.count() == asked(two)["sendgrid"]
    assert statuses()["sent"] == 100 - held.count()
    assert not held.filter(next_attempt_at__lt=Now() + dt.timedelta(seconds=HOLD - 20)).exists()
    assert process.gate().read_providers()[0].state is State.OPEN
    let_the_hold_pass()
    delivery.drain_emails()
    assert statuses() == {"sent": 100} and accepted(two) == {1}


def test_held_e_mails_do_not_test_the_open_breaker_again_while_another_provider_works(two, settings):
    settings.BREAKER_OPEN_SECONDS = 0.1  # a test is always due
    process.start_anew()
    two.fail(kind="status", status=504, provider="sendgrid")
    make_mails(20)
    delivery.drain_emails()
    before = asked(two)["sendgrid"]
    let_the_hold_pass()
    time.sleep(0.15)
    delivery.drain_emails()
    assert statuses() == {"sent": 20} and asked(two)["sendgrid"] == before


def test_a_single_e_mail_goes_to_the_next_provider_after_its_hold_also_with_the_breaker_closed(two):
    two.fail(kind="status", status=504, provider="sendgrid")
    make_mail()
    delivery.drain_emails()
    due_now()
    delivery.drain_emails()
    assert statuses() == {"failed": 1} and asked(two) == {"sendgrid": 1}, "it is held"
    let_the_hold_pass()
    delivery.drain_emails()
    assert statuses() == {"sent": 1} and asked(two) == {"sendgrid": 1, "resend": 1}


def test_each_provider_has_its_turn_where_several_answer_ambiguously(two, settings):
    configure(settings, "sendgrid", "postmark", "resend")
    two.fail(kind="status", status=504, provider="sendgrid")
    two.fail(kind="status", status=504, provider="postmark")
    make_mail()
    for _ in range(3):
        delivery.drain_emails()
        let_the_hold_pass()
    assert statuses() == {"sent": 1} and asked(two) == {"sendgrid": 1, "postmark": 1, "resend": 1}


def test_a_webhook_within_the_hold_makes_it_sent_and_nobody_is_asked_again(two):
    two.fail(kind="accept_then_status", status=504, provider="sendgrid")
    mail = make_mail()
    delivery.drain_emails()
    report(mail)
    let_the_hold_pass()
    delivery.drain_emails()
    assert statuses() == {"sent": 1} and asked(two) == {"sendgrid": 1}
    assert EmailNotification.objects.get().provider == "sendgrid"


def test_a_webhook_after_the_hold_changes_nothing_of_an_e_mail_that_another_provider_took(two):
    two.fail(kind="accept_then_status", status=504, provider="sendgrid")
    mail = make_mail()
    delivery.drain_emails()
    let_the_hold_pass()
    delivery.drain_emails()
    sent = EmailNotification.objects.get()
    assert (sent.status, sent.provider) == (Status.SENT, "resend")
    report(mail, "delivered")
    row = EmailNotification.objects.get()
    assert (row.status, row.provider, row.sent_at) == (Status.SENT, "resend", sent.sent_at)
    assert row.delivered_at and accepted(two) == {2}  # the one duplicate that the guarantee allows


def test_a_provider_with_keys_is_asked_again_a_few_times_and_another_after_the_hold(two, settings):
    configure(settings, "resend", "sendgrid")
    two.fail(kind="status", status=504, provider="resend")
    make_mail()
    for number in range(1, len(REPEATS) + 2):
        delivery.drain_emails()
        assert asked(two) == {"resend": number}
        row = EmailNotification.objects.get()
        wait = (row.next_attempt_at - row.updated_at).total_seconds()
        assert wait == pytest.approx([*REPEATS, HOLD][number - 1], abs=0.1)
        due_now()
    let_the_hold_pass()
    delivery.drain_emails()
    assert statuses() == {"sent": 1} and asked(two) == {"resend": 1 + len(REPEATS), "sendgrid": 1}


def test_a_repeat_with_the_key_makes_no_second_e_mail(two, settings):
    configure(settings, "resend", "sendgrid")
    two.fail(kind="accept_then_status", status=504, provider="resend", times=1)
    make_mail()
    delivery.drain_emails()
    due_now()
    delivery.drain_emails()
    assert statuses() == {"sent": 1} and asked(two) == {"resend": 2} and len(two.mails) == 1


def test_a_pinned_e_mail_waits_while_its_providers_breaker_is_open_and_leaves_after_the_hold(two, settings):
    settings.BREAKER_OPEN_SECONDS = 0.1  # a test is always due
    configure(settings, "resend", "sendgrid")
    two.fail(kind="status", status=504, provider="resend")
    make_mails(100)
    delivery.drain_emails()
    sent, before = statuses()["sent"], asked(two)["resend"]
    assert 5 <= 100 - sent <= ASKED and process.gate().read_providers()[0].state is State.OPEN
    time.sleep(0.15)
    due_now()
    delivery.drain_emails()
    assert statuses()["sent"] == sent and asked(two)["resend"] == before, "they wait, and test nothing"
    let_the_hold_pass()
    delivery.drain_emails()
    assert statuses() == {"sent": 100} and asked(two)["resend"] == before and accepted(two) == {1}


@pytest.mark.parametrize("status", [401, 429, 503])
def test_a_clean_refusal_of_the_provider_it_is_pinned_to_delays_it_by_no_more_than_the_hold(
    two, settings, status
):
    settings.RETRY_DELAYS = [3600.0]
    configure(settings, "resend", "sendgrid")
    two.fail(kind="status", status=504, provider="resend", times=1)
    two.fail(kind="status", status=status, provider="resend", headers={"Retry-After": "3600"})
    make_mail()
    delivery.drain_emails()
    due_now()
    delivery.drain_emails()
    row = EmailNotification.objects.get()
    assert asked(two) == {"resend": 2}
    assert 0 < (row.next_attempt_at - row.updated_at).total_seconds() <= HOLD
    let_the_hold_pass()
    delivery.drain_emails()
    assert statuses() == {"sent": 1} and asked(two)["sendgrid"] == 1


@pytest.mark.parametrize(("removed", "left"), [("sendgrid", "resend"), ("resend", "sendgrid")])
def test_a_provider_that_is_removed_during_the_hold_still_has_its_hold(two, settings, removed, left):
    configure(settings, removed, left)
    two.fail(kind="status", status=504, provider=removed)
    make_mail()
    delivery.drain_emails()
    configure(settings, left)
    due_now()
    delivery.drain_emails()
    assert statuses() == {"failed": 1} and asked(two) == {removed: 1}
    let_the_hold_pass()
    delivery.drain_emails()
    assert statuses() == {"sent": 1} and asked(two) == {removed: 1, left: 1}


@pytest.mark.parametrize("providers", [["sendgrid"], ["resend"], ["sendgrid", "resend"]])
def test_no_length_of_such_an_outage_makes_a_dead_letter(two, settings, providers):
    settings.BREAKER_OPEN_SECONDS = 0.01
    configure(settings, *providers)
    two.fail(kind="status", status=504)
    make_mails(10)
    for _ in range(12):
        delivery.drain_emails()
        let_the_hold_pass()
        time.sleep(0.02)  # until the next test of an open breaker is due
    assert sum(asked(two).values()) > 10
    assert not EmailNotification.objects.exclude(status__in=["pending", "failed"]).exists()
    assert not EmailNotification.objects.filter(retry_count__gt=0).exists()
    two.heal()
    deadline = time.monotonic() + 20
    while statuses() != {"sent": 10} and time.monotonic() < deadline:
        let_the_hold_pass()
        delivery.drain_emails()
    assert statuses() == {"sent": 10} and accepted(two) == {1}


def test_a_held_e_mail_that_was_given_back_after_its_hold_goes_to_the_next_provider(two):
    two.fail(kind="status", status=504, provider="sendgrid")
    make_mail()
    delivery.drain_emails()
    let_the_hold_pass()
    (row,) = EmailNotification.objects.claim(limit=1)  # by a worker that stops
    EmailNotification.objects.filter(id=row.id).update(status="pending", claim_token=None, claimed_at=None)
    delivery.drain_emails()
    assert statuses() == {"sent": 1} and asked(two) == {"sendgrid": 1, "resend": 1}


@pytest.mark.parametrize("providers", [["sendgrid", "resend"], ["resend", "sendgrid"]])
def test_a_person_resends_or_gives_up_only_after_the_hold(two, settings, providers):
    configure(settings, *providers)
    two.fail(kind="status", status=504, times=1)
    mail = make_mail()
    delivery.drain_emails()
    for action in (resend, give_up):
        changes, (refusal,) = action(ids=[mail.id])
        assert changes == [] and "held" in refusal.reason
    let_the_hold_pass()
    changes, _ = resend(ids=[mail.id])
    assert len(changes) == 1
    delivery.drain_emails()
    assert statuses() == {"sent": 1} and asked(two) == {providers[0]: 2}, "a new round starts with the first"


class TestExpiredLease:
    """A lost worker's attempt names no provider."""

    def lose_a_worker(self, **fields) -> None:
        make_mail(status="processing", claimed_at=Now() - dt.timedelta(hours=1), **fields)
        EmailNotification.objects.recover(lease_seconds=300)
        due_now()

    def test_with_several_providers_it_is_held_then_any_may_have_it(self, two, settings):
        configure(settings, "resend", "sendgrid")
        self.lose_a_worker(provider="resend")  # of an earlier attempt: the lost one may have been elsewhere
        delivery.drain_emails()
        assert statuses() == {"failed": 1} and asked(two) == {}
        let_the_hold_pass()
        delivery.drain_emails()
        assert statuses() == {"sent": 1} and asked(two) == {"resend": 1}

    def test_with_one_provider_that_knows_its_e_mails_it_is_asked_with_the_key(self, two, settings):
        configure(settings, "resend")
        self.lose_a_worker()
        delivery.drain_emails()
        assert statuses() == {"sent": 1} and asked(two) == {"resend": 1}

    def test_with_one_provider_that_does_not_it_is_held(self, two, settings):
        configure(settings, "sendgrid")
        self.lose_a_worker()
        delivery.drain_emails()
        assert statuses() == {"failed": 1} and asked(two) == {}
