"""How long a provider that knows its e-mails by their keys keeps one after a lost answer."""

from __future__ import annotations

import datetime as dt

import pytest

from notifications.delivery import drain as delivery
from notifications.delivery.sending import REPEATS
from notifications.models import EmailNotification
from tests.factories import make_mail, statuses
from tests.notifications import test_ambiguous
from tests.notifications.neighbours import accept_around, due_now
from tests.notifications.providers.conftest import provider
from tests.notifications.test_ambiguous import HOLD, asked, configure, let_the_hold_pass, two

__all__ = ["provider", "two"]  # fixtures
pytestmark = pytest.mark.django_db(transaction=True)


def drain_and_see_the_wait() -> float:
    delivery.drain_emails()
    row = EmailNotification.objects.get()
    return (row.next_attempt_at - row.updated_at).total_seconds()


def test_an_e_mail_leaves_after_as_many_lost_answers_however_far_apart_they_are(two, settings, monkeypatch):
    configure(settings, "resend", "sendgrid")
    two.fail(kind="status", status=504, provider="resend")
    make_mail()
    monkeypatch.setattr(test_ambiguous, "HOLD", 0.6 * HOLD)  # a backlog, or slow answers
    for wait in [*REPEATS, HOLD]:
        assert drain_and_see_the_wait() == pytest.approx(wait, abs=0.1)
        let_the_hold_pass()
    let_the_hold_pass()
    delivery.drain_emails()
    assert statuses() == {"sent": 1} and asked(two) == {"resend": 1 + len(REPEATS), "sendgrid": 1}


def test_a_clean_refusal_after_a_lost_answer_is_repeated_after_its_own_backoff(two, settings):
    configure(settings, "resend", "sendgrid")
    settings.RETRY_DELAYS = [2.0]
    two.fail(kind="status", status=504, provider="resend", times=1)
    two.fail(kind="status", status=503, provider="resend", times=1)
    make_mail()
    delivery.drain_emails()
    due_now()
    assert 1 < drain_and_see_the_wait() < 3
    due_now()
    delivery.drain_emails()
    assert statuses() == {"sent": 1} and asked(two) == {"resend": 3}


def be_held_in_a_busy_shop() -> None:
    """Let one e-mail get four lost answers within seconds, between which others were accepted."""
    for _ in [*REPEATS, HOLD]:
        delivery.drain_emails()
        due_now()
    mail = EmailNotification.objects.get()
    ago = [HOLD + 8, HOLD + 7, HOLD + 5, HOLD + 1]
    for entry, seconds in zip(mail.errors[-len(ago) :], ago, strict=True):
        entry["at"] = (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=seconds)).isoformat()
        accept_around(ago=seconds - 0.5, provider="resend")
    mail.save(update_fields=["errors"])


def test_lost_answers_of_one_hold_use_up_one_retry_so_that_another_provider_is_asked(two, settings):
    configure(settings, "resend", "sendgrid")
    two.fail(kind="status", status=504, provider="resend")
    make_mail(max_retries=3)
    be_held_in_a_busy_shop()
    delivery.drain_emails()
    assert statuses() == {"sent": 1} and asked(two)["sendgrid"] == 1
