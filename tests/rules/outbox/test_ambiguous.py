"""Answers that prove nothing: an e-mail is held, then goes to another provider, and always leaves."""

from __future__ import annotations

import datetime as dt
import json
import time

import pytest
from django.db.models.functions import Now
from django.test import Client

from notifications.delivery import process
from outbox.delivery.rows.attempts import time_of
from tests.kit.mails import due_now, make_mail, make_mails, statuses
from tests.kit.words import PROVIDERS, EmailNotification, State, Status, Verdict, give_up, resend
from tests.kit.words import drain as delivery
from tests.providers.conftest import provider
from tests.rules.outbox.test_failover import ASKED
from tests.rules.outbox.test_slots import recorded

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


@pytest.mark.parametrize("second", [401, 429, 503, 504, 400])
def test_a_provider_with_keys_is_asked_twice_in_one_attempt_and_another_after_the_hold(two, settings, second):
    """Only an acceptance proves something about the first request."""
    configure(settings, "resend", "sendgrid")
    two.fail(kind="status", status=504, provider="resend", times=1)
    two.fail(kind="status", status=second, provider="resend", headers={"Retry-After": "3600"})
    make_mail()
    delivery.drain_emails()
    row = EmailNotification.objects.get()
    assert asked(two) == {"resend": 2}
    assert [(one["outcome"], one["code"]) for one in row.errors] == [("ambiguous", "504")]
    assert (row.next_attempt_at - row.updated_at).total_seconds() == pytest.approx(HOLD, abs=0.1)
    due_now()
    delivery.drain_emails()
    assert statuses() == {"failed": 1} and asked(two) == {"resend": 2}, "it is held"
    let_the_hold_pass()
    delivery.drain_emails()
    assert statuses() == {"sent": 1} and asked(two) == {"resend": 2, "sendgrid": 1}


@pytest.mark.parametrize(
    "fault", [{"kind": "accept_then_status", "status": 504}, {"kind": "accept_then_reset"}]
)
def test_a_second_request_with_the_key_makes_no_second_e_mail(two, settings, fault):
    configure(settings, "resend", "sendgrid")
    two.fail(provider="resend", times=1, **fault)
    make_mail()
    delivery.drain_emails()
    assert statuses() == {"sent": 1} and asked(two) == {"resend": 2} and len(two.mails) == 1
    assert EmailNotification.objects.get().errors == []


def test_a_second_request_takes_a_slot_of_the_rate_limit(two, settings, monkeypatch):
    settings.EMAIL_RATE_LIMIT = 50.0
    configure(settings, "resend")
    two.fail(kind="status", status=504, provider="resend")
    slots = recorded(process.gate(), monkeypatch)
    assert process.current().send(make_mail()).verdict is Verdict.AMBIGUOUS
    assert len([slot for slot in slots if slot.is_taken]) >= 2 and asked(two) == {"resend": 2}


def test_a_provider_is_not_asked_a_second_time_when_the_lease_is_too_short_for_it(two, settings, monkeypatch):
    configure(settings, "resend")
    mail, real = make_mail(), PROVIDERS["resend"].send

    def ask(mail):
        mail.deadline_at = time.monotonic()
        return real(mail)

    two.fail(kind="status", status=504, provider="resend")
    monkeypatch.setattr(PROVIDERS["resend"], "send", ask)
    assert process.current().send(mail).verdict is Verdict.AMBIGUOUS and asked(two) == {"resend": 1}


@pytest.mark.parametrize(("removed", "left"), [("sendgrid", "resend"), ("resend", "sendgrid")])
def test_a_provider_that_is_removed_during_the_hold_still_has_its_hold(two, settings, removed, left):
    configure(settings, removed, left)
    two.fail(kind="status", status=504, provider=removed)
    make_mail()
    delivery.drain_emails()
    configure(settings, left)
    due_now()
    delivery.drain_emails()
    times = 2 if removed == "resend" else 1
    assert statuses() == {"failed": 1} and asked(two) == {removed: times}
    let_the_hold_pass()
    delivery.drain_emails()
    assert statuses() == {"sent": 1} and asked(two) == {removed: times, left: 1}


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
    times = 2 if providers[0] == "resend" else 1
    two.fail(kind="status", status=504, times=times)
    mail = make_mail()
    delivery.drain_emails()
    for action in (resend, give_up):
        changes, (refusal,) = action(ids=[mail.id])
        assert changes == [] and "held" in refusal.reason
    let_the_hold_pass()
    changes, _ = resend(ids=[mail.id])
    assert len(changes) == 1
    delivery.drain_emails()
    assert statuses() == {"sent": 1} and asked(two) == {providers[0]: times + 1}, (
        "a new round starts with the first"
    )


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

    @pytest.mark.parametrize("name", ["sendgrid", "resend"])
    def test_with_one_provider_it_is_held(self, two, settings, name):
        configure(settings, name)
        self.lose_a_worker()
        delivery.drain_emails()
        assert statuses() == {"failed": 1} and asked(two) == {}
