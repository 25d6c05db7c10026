"""The same permanent refusal of very different e-mails is the account's, and makes no dead letter."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from outbox.refusals import DOMAINS
from tests.kit.mails import drained, due_now, make_mail, sandbox, statuses
from tests.kit.providers import provider
from tests.kit.waiting import until
from tests.kit.words import EmailNotification, drain

__all__ = ["provider", "sandbox"]
pytestmark = pytest.mark.django_db(transaction=True)
EVENTS = ["order.paid", "order.cancelled", "order.refunded"]
LIMIT = "Your plan allows no more today, reference 7f3a-2210."


def make_mails_to(count: int, *, domains: int, events: int) -> None:
    """Insert e-mails to the domains in turn, about each kind of event in turn."""
    for number in range(count):
        make_mail(
            recipient_email=f"{number}@shop{number % domains}.example",
            event_type=EVENTS[number // domains % events],
        )


@pytest.fixture(autouse=True)
def _one_thread(settings):
    settings.EMAIL_CONCURRENCY, settings.BREAKER_OPEN_SECONDS = 1, 0.1


def until_all_ended() -> dict[str, int]:
    until(lambda: "pending" not in drained(), meanwhile=due_now)
    return statuses()


def test_a_limit_in_words_of_its_own_stops_the_provider_and_no_e_mail_is_dead(sandbox, settings):
    settings.BREAKER_OPEN_SECONDS = 3600.0
    sandbox.fail(kind="status", status=400, message=LIMIT)
    make_mails_to(80, domains=8, events=2)
    assert drained() == {"pending": 80}
    assert sandbox.stats()["requests"] <= 8 + DOMAINS


def test_they_are_sent_once_the_provider_takes_e_mails_again(sandbox):
    sandbox.fail(kind="status", status=400, message=LIMIT)
    make_mails_to(40, domains=8, events=2)
    assert drained() == {"pending": 40}
    sandbox.heal()
    assert until_all_ended() == {"sent": 40}


def test_the_next_provider_sends_them_at_once(provider, settings):
    settings.EMAIL_PROVIDERS = ["sendgrid", "resend"]
    drain.reset()
    provider.fail(kind="status", status=400, message=LIMIT, provider="sendgrid")
    make_mails_to(40, domains=8, events=2)
    assert drained() == {"sent": 40}
    assert {email.provider for email in EmailNotification.objects.all()} == {"resend"}


def test_an_e_mail_that_is_refused_again_after_anothers_acceptance_is_dead(sandbox):
    sandbox.fail(kind="status", status=400, message=LIMIT)
    make_mails_to(40, domains=8, events=2)
    assert drained() == {"pending": 40}
    sandbox.heal()
    sandbox.fail(kind="status", status=400, message=LIMIT, to="^39@")
    assert until_all_ended() == {"sent": 39, "dead_lettered": 1}


def refuse_a_few(sandbox):
    sandbox.fail(kind="status", status=400, message=LIMIT)
    make_mails_to(DOMAINS - 1, domains=DOMAINS - 1, events=2)


def refuse_a_sentence(sandbox):
    sandbox.fail(kind="status", status=400, message="This content looks like spam.")
    make_mails_to(60, domains=20, events=1)


def refuse_a_domain(sandbox):
    sandbox.fail(kind="status", status=400, message="This domain refuses your e-mails.")
    make_mails_to(60, domains=1, events=3)


def refuse_bad_addresses(sandbox):
    words = random.choice(["Does not contain a valid address.", "550 5.1.1 unknown", "No such user here"])
    sandbox.fail(kind="status", status=400, message=words)
    make_mails_to(60, domains=20, events=3)


@pytest.mark.parametrize("refuse", [refuse_a_few, refuse_a_sentence, refuse_a_domain, refuse_bad_addresses])
def test_what_is_wrong_with_the_e_mails_makes_dead_letters_of_them(sandbox, refuse: Callable[..., None]):
    refuse(sandbox)
    count = EmailNotification.objects.count()
    assert drained() == {"dead_lettered": count}
    make_mail(recipient_email="good@example.com")
    sandbox.heal()
    assert drained() == {"dead_lettered": count, "sent": 1}


def test_refusals_between_acceptances_are_the_e_mails(sandbox):
    sandbox.fail(kind="status", status=400, message=LIMIT, to="^bad")
    for number in range(30):
        make_mail(recipient_email=f"bad{number}@shop{number}.example", event_type=EVENTS[number % 3])
        make_mail(recipient_email=f"good{number}@shop{number}.example")
        drained()
    assert statuses() == {"sent": 30, "dead_lettered": 30}
