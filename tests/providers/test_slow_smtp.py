"""An SMTP server that is slow at every reply, but lives."""

from __future__ import annotations

import time

import pytest

from local.sandbox import Sandbox
from tests.kit.mails import make_mail
from tests.kit.smtp import SmtpServer
from tests.kit.words import PROVIDERS, Verdict

pytestmark = pytest.mark.django_db


@pytest.fixture
def server(settings):
    with Sandbox() as sandbox, SmtpServer(sandbox=sandbox, delay=0.1) as server:
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", server.port
        PROVIDERS["smtp"].close()
        yield server
        PROVIDERS["smtp"].close()


def test_a_message_is_sent_while_its_lease_lasts(server):
    mail = make_mail()
    mail.deadline_at = time.monotonic() + 30
    assert PROVIDERS["smtp"].send(mail).verdict is Verdict.ACCEPTED
    assert server.accepted == 1


def test_no_message_is_sent_once_its_deadline_passed_during_the_dialogue(server):
    mail = make_mail()
    mail.deadline_at = time.monotonic() + 0.2  # the greeting and EHLO alone take as long
    outcome = PROVIDERS["smtp"].send(mail)
    assert outcome.verdict is Verdict.TRANSIENT and "lease" in outcome.text
    assert server.accepted == 0
    mail.deadline_at = time.monotonic() + 30
    assert PROVIDERS["smtp"].send(mail).verdict is Verdict.ACCEPTED


@pytest.mark.parametrize("replies", [0, 1, 2, 3])
def test_no_message_is_sent_once_the_process_stops_during_the_dialogue(server, replies):
    mail = make_mail()
    left = iter([False] * replies)
    mail.should_stop = lambda: next(left, True)
    outcome = PROVIDERS["smtp"].send(mail)
    assert outcome.verdict is Verdict.RETURNED
    assert server.accepted == 0
    assert PROVIDERS["smtp"].send(make_mail()).verdict is Verdict.ACCEPTED
