"""`manage.py drain_outbox` returns when no e-mail is due, and fails if it cannot get there."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from django.core.management import CommandError, call_command

from outbox.management.commands import drain_outbox
from tests.kit.commands import handlers_kept, provider, stopped_when
from tests.kit.mails import make_mail, make_mails, statuses
from tests.kit.months import dsn
from tests.kit.words import EmailNotification, drain

__all__ = ["provider"]  # a fixture
pytestmark = pytest.mark.django_db(transaction=True)


def drain_all() -> None:
    with handlers_kept():
        call_command("drain_outbox")


@contextmanager
def locked(mail: EmailNotification) -> Iterator[psycopg.Connection]:
    """Lock the row of an e-mail in another session, which is yielded."""
    with psycopg.connect(dsn()) as other:
        other.execute("SELECT FROM email_notifications WHERE id = %s FOR UPDATE", [mail.id])
        yield other


def test_sends_rows_that_it_gave_back_because_their_sends_began_late(provider, settings):
    settings.LEASE_SECONDS = 4.0  # so a send begins within 0.75 s of its claim, or not at all
    settings.EMAIL_CONNECT_TIMEOUT, settings.EMAIL_READ_TIMEOUT = 1.0, 2.0
    settings.EMAIL_CONCURRENCY = 1
    provider.latency_seconds = 0.25
    make_mails(5)
    drain_all()
    assert statuses() == {"sent": 5}


def test_waits_for_a_rate_limit_of_less_than_one_a_second(provider, settings):
    settings.EMAIL_RATE_LIMIT = 0.6
    make_mails(2)
    drain_all()
    assert statuses() == {"sent": 2}


def test_waits_for_a_row_that_another_session_locks(provider):
    with locked(make_mail()) as other:
        unlock = threading.Timer(0.5, other.rollback)
        unlock.start()
        drain_all()
        unlock.join()
    assert statuses() == {"sent": 1}


def test_waits_for_a_short_pause_of_the_provider(provider, settings):
    settings.EMAIL_CONCURRENCY = 1
    provider.fail(kind="status", status=429, headers={"Retry-After": "2"}, times=1)
    make_mails(3)
    drain_all()
    assert statuses()["sent"] >= 2  # the third is due when the pause ends, at the same moment


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"status": 401}, r"sendgrid refuses our account since \d\d:\d\d \(401\): check SENDGRID_API_KEY"),
        (
            {"status": 429, "headers": {"Retry-After": "600"}},
            r"sendgrid asks us to wait until \d\d:\d\d \(429\)",
        ),
    ],
)
def test_fails_if_e_mails_are_due_and_no_provider_may_be_asked(provider, settings, answer, words):
    settings.EMAIL_CONCURRENCY = 1
    provider.fail(kind="status", **answer)
    make_mails(3)
    with pytest.raises(CommandError) as error:
        drain_all()
    assert re.search(words, str(error.value))
    assert error.value.returncode == 1
    assert statuses() == {"pending": 3}


def test_fails_if_it_can_claim_nothing_for_long(provider, monkeypatch):
    monkeypatch.setattr(drain_outbox, "MOST_IDLE_POLLS", 1)
    with locked(make_mail()), pytest.raises(CommandError, match="Another session"):
        drain_all()
    assert statuses() == {"pending": 1}


def test_returns_if_it_is_told_to_stop_while_it_waits(provider):
    began = time.monotonic()
    with locked(make_mail()), stopped_when(lambda: time.monotonic() > began + 0.5):
        call_command("drain_outbox")
    assert statuses() == {"pending": 1}
    assert drain.current().stopping.is_set()
