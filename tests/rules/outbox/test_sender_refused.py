"""A provider that refuses a shop's sender stops that shop's e-mails alone, until it is verified."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db.models.functions import Now

from notifications.conditions import REFUSED_SENDERS
from outbox.gate.refused_senders import LONGEST_WAIT_SECONDS, RefusedSenders
from tests.kit.mails import drained, due_now, make_mail, sandbox
from tests.kit.words import BreakerState, EmailNotification, conditions, drain, read_database_time

__all__ = ["sandbox"]
UNVERIFIED: dict[str, Any] = {
    "kind": "status",
    "status": 403,
    "message": "The from address does not match a verified Sender Identity.",
    "sender": "@shop-a.test",
}


def mails_of(shop: str, count: int) -> None:
    for _ in range(count):
        make_mail(profile=shop, from_email=f"{shop} <orders@{shop}.test>")


def refused_senders() -> list[str]:
    rows = conditions.read_facts(now=read_database_time())[REFUSED_SENDERS]
    return [row["profile"] for row in rows]


def breaker() -> BreakerState:
    return drain.gate().read_providers()[0].state


@pytest.mark.django_db(transaction=True)
class TestOfTwoProfilesOnOneAccount:
    @pytest.fixture(autouse=True)
    def _one_at_a_time(self, settings):
        settings.EMAIL_CONCURRENCY = 1

    def test_the_unverified_one_waits_and_the_other_is_sent(self, sandbox):
        sandbox.fail(**UNVERIFIED)
        mails_of("shop-a", 3)
        mails_of("shop-b", 5)
        assert drained() == {"pending": 3, "sent": 5}
        assert {mail.from_email for mail in sandbox.mails} == {"orders@shop-b.test"}
        assert breaker() is BreakerState.CLOSED
        # Only one e-mail asked. The others learnt from it that their sender is refused.
        assert sandbox.stats()["requests"] == 6

    def test_both_are_sent_once_the_sender_is_verified_and_nothing_is_lost_or_doubled(
        self, sandbox, settings
    ):
        settings.BREAKER_OPEN_SECONDS = 0.0
        sandbox.fail(**UNVERIFIED)
        mails_of("shop-a", 3)
        mails_of("shop-b", 2)
        drained()
        due_now()
        assert drained() == {"pending": 3, "sent": 2}
        sandbox.heal()
        due_now()
        assert drained() == {"sent": 5}
        assert sandbox.stats()["doubled"] == {}
        assert EmailNotification.objects.filter(retry_count__gt=0).count() == 0

    def test_its_first_acceptance_ends_the_alarm_while_others_still_wait(self, sandbox, settings):
        settings.BREAKER_OPEN_SECONDS = 0.0
        sandbox.fail(**UNVERIFIED)
        mails_of("shop-a", 3)
        mails_of("shop-b", 1)
        drained()
        EmailNotification.objects.filter(status="pending").update(
            next_attempt_at=Now() + dt.timedelta(hours=1)
        )
        assert refused_senders() == ["shop-a"]
        sandbox.heal()
        mails_of("shop-b", 1)
        assert drained() == {"pending": 3, "sent": 2} and refused_senders() == ["shop-a"]
        mails_of("shop-a", 1)
        assert drained() == {"pending": 3, "sent": 3} and refused_senders() == []

    def test_a_refused_email_uses_up_no_retry_and_keeps_the_reason(self, sandbox):
        sandbox.fail(**UNVERIFIED)
        mails_of("shop-a", 1)
        drained()
        mail = EmailNotification.objects.get()
        assert (mail.status, mail.retry_count) == ("pending", 0)
        assert mail.errors[0]["outcome"] == "sender_refused"
        assert "verified Sender Identity" in mail.last_error

    def test_another_provider_that_verified_the_sender_sends_it(self, sandbox, settings):
        settings.EMAIL_PROVIDERS = ["sendgrid", "resend"]
        settings.ANYMAIL = settings.ANYMAIL | {"RESEND_API_URL": f"{sandbox.url}/", "RESEND_API_KEY": "x"}
        drain.reset()
        sandbox.fail(**UNVERIFIED, provider="sendgrid")
        mails_of("shop-a", 3)
        assert drained() == {"sent": 3}
        assert {mail.provider for mail in sandbox.mails} == {"resend"}
        assert sandbox.stats()["requests_by_provider"] == {"sendgrid": 1, "resend": 3}

    def test_a_short_pause_of_the_provider_that_verified_it_is_no_long_wait(self, sandbox, settings):
        settings.EMAIL_PROVIDERS = ["sendgrid", "resend"]
        settings.ANYMAIL = settings.ANYMAIL | {"RESEND_API_URL": f"{sandbox.url}/", "RESEND_API_KEY": "x"}
        drain.reset()
        sandbox.fail(**UNVERIFIED, provider="sendgrid")
        drain.gate().senders._clock = clock = Clock()
        for _ in range(2):  # the second e-mail tests the first provider when the stop has lasted for an hour
            mails_of("shop-a", 1)
            assert drained().keys() == {"sent"}
            clock.now += 3600
        clock.now -= 3600
        sandbox.fail(kind="status", status=429, headers={"Retry-After": "5"}, provider="resend")
        mails_of("shop-a", 3)
        drained()
        waiting = EmailNotification.objects.filter(status="pending")
        waits = [(mail.next_attempt_at - mail.updated_at).total_seconds() for mail in waiting]
        assert len(waits) == 3 and 0 < max(waits) <= 30

    def test_a_new_sender_of_the_profile_is_asked_at_once(self, sandbox):
        sandbox.fail(**UNVERIFIED)
        mails_of("shop-a", 1)
        drained()
        make_mail(profile="shop-a", from_email="orders@verified.test")
        assert drained() == {"pending": 1, "sent": 1}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def senders(clock) -> RefusedSenders:
    return RefusedSenders(every_seconds=30.0, clock=clock)


A, B = {"profile": "a", "sender": "a@a.test"}, {"profile": "b", "sender": "a@a.test"}


class TestSenders:
    def test_stop_one_profile_at_one_provider(self, senders):
        senders.refused("one", **A, reason="403")
        assert set(senders.stopped_at(["one", "two"], **A)) == {"one"}
        assert senders.stopped_at(["one", "two"], **B) == {}

    def test_let_one_email_test_the_provider_at_a_time(self, senders, clock):
        senders.refused("one", **A, reason="403")
        clock.now += 30
        assert senders.stopped_at(["one"], **A) == {}
        assert set(senders.stopped_at(["one"], **A)) == {"one"}

    def test_end_the_stop_at_the_first_acceptance(self, senders):
        senders.refused("one", **A, reason="403")
        senders.accepted("one", **A)
        assert senders.stopped_at(["one"], **A) == {}

    def test_make_emails_wait_for_longer_the_longer_the_stop_lasts(self, senders, clock):
        waits = [senders.refused("one", **A, reason="403")]
        for later in (600, 100_000):
            clock.now += later
            waits.append(senders.refused("one", **A, reason="403"))
        assert 30 <= waits[0] <= 30 < 300 <= waits[1] <= 600
        assert LONGEST_WAIT_SECONDS / 2 <= waits[2] <= LONGEST_WAIT_SECONDS
