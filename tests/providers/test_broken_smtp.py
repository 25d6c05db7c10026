"""The tests' SMTP server meets the sandbox's faults, also over TLS."""

from __future__ import annotations

import pytest

from local.sandbox import Sandbox
from tests.kit.certificates import make_server_context
from tests.kit.mails import make_mail
from tests.kit.smtp import SmtpServer
from tests.kit.words import PROVIDERS, Verdict

pytestmark = pytest.mark.django_db


@pytest.fixture
def sandbox(settings, monkeypatch, tmp_path):
    context, authority = make_server_context(folder=tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    with Sandbox(tls=context) as sandbox, SmtpServer(sandbox=sandbox) as server:
        settings.EMAIL_HOST, settings.EMAIL_PORT, settings.EMAIL_USE_TLS = "127.0.0.1", server.port, True
        PROVIDERS["smtp"].close()
        yield sandbox
        PROVIDERS["smtp"].close()


@pytest.mark.parametrize(
    ("fault", "verdict", "accepted"),
    [
        ({"status": 503}, Verdict.TRANSIENT, 0),
        ({"status": 429}, Verdict.THROTTLED, 0),
        ({"kind": "slow", "seconds": 0.1}, Verdict.ACCEPTED, 1),
        ({"kind": "reset"}, Verdict.AMBIGUOUS, 0),
        ({"kind": "garbage"}, Verdict.AMBIGUOUS, 0),
        ({"kind": "accept_then_reset"}, Verdict.AMBIGUOUS, 1),
        ({"kind": "accept_then_garbage"}, Verdict.AMBIGUOUS, 1),
        ({"kind": "accept_then_status", "status": 504}, Verdict.AMBIGUOUS, 1),
        ({"kind": "accept_then_hang", "seconds": 0.1}, Verdict.AMBIGUOUS, 1),
    ],
    ids=str,
)
def test_a_fault_has_the_verdict_that_smtp_gives_it_and_the_next_mail_is_sent(
    sandbox, fault, verdict, accepted
):
    broken, good = make_mail(), make_mail()
    sandbox.fail(**fault, to=broken.recipient_email, times=1)
    assert PROVIDERS["smtp"].send(broken).verdict is verdict
    assert sandbox.mailbox.counts()[str(broken.id)] == (1, accepted)
    lost = {str(broken.id): 1} if accepted and verdict is Verdict.AMBIGUOUS else {}
    assert sandbox.mailbox.lost_answers() == lost
    assert PROVIDERS["smtp"].send(good).verdict is Verdict.ACCEPTED


def test_a_server_that_refuses_is_unreachable(sandbox):
    sandbox.fail(kind="refuse", seconds=60)
    assert PROVIDERS["smtp"].send(make_mail()).verdict is Verdict.UNREACHABLE
    sandbox.heal()
    assert PROVIDERS["smtp"].send(make_mail()).verdict is Verdict.ACCEPTED
