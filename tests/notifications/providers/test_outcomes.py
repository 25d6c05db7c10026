"""Every row of every provider's table of outcomes, over its real protocol."""

from __future__ import annotations

from typing import Any

import pytest

from notifications.providers.base import message_id
from notifications.providers.sending import PROVIDERS
from outbox.delivery.outcomes import Outcome, Verdict
from tests.factories import make_mail

pytestmark = pytest.mark.django_db
HTTP = ["sendgrid", "resend", "ses"]


def status(code: int, **more: Any) -> dict[str, Any]:
    return {"kind": "status", "status": code} | more


COMMON = [
    (status(400), Verdict.PERMANENT),
    (status(401), Verdict.MISCONFIGURED),
    (status(403), Verdict.MISCONFIGURED),
    (status(404), Verdict.MISCONFIGURED),
    (status(429), Verdict.THROTTLED),
    (status(500), Verdict.TRANSIENT),
    (status(503), Verdict.TRANSIENT),
    ({"kind": "hang", "seconds": 3}, Verdict.AMBIGUOUS),
    ({"kind": "reset"}, Verdict.AMBIGUOUS),
    ({"kind": "accept_then_reset"}, Verdict.AMBIGUOUS),
    ({"kind": "accept_then_hang", "seconds": 3}, Verdict.AMBIGUOUS),
]
OWN = [
    ("sendgrid", status(413), Verdict.PERMANENT),
    ("resend", status(422), Verdict.PERMANENT),
    ("resend", status(409), Verdict.PERMANENT),  # the key was used for another content
    ("ses", status(400, message="MessageRejected"), Verdict.PERMANENT),
    ("ses", status(400, message="LimitExceededException"), Verdict.THROTTLED),
    ("ses", status(400, message="TooManyRequestsException"), Verdict.THROTTLED),
    ("ses", status(400, message="AccountSuspendedException"), Verdict.MISCONFIGURED),
    ("ses", status(400, message="SendingPausedException"), Verdict.MISCONFIGURED),
    ("ses", status(400, message="MailFromDomainNotVerifiedException"), Verdict.MISCONFIGURED),
    ("ses", status(400, message="Email address is not verified."), Verdict.MISCONFIGURED),
    ("ses", status(403, message="SignatureDoesNotMatch"), Verdict.MISCONFIGURED),
    ("ses", status(400, message="RequestExpired"), Verdict.MISCONFIGURED),
    ("ses", status(408), Verdict.TRANSIENT),
    ("resend", status(422, message="invalid_from_address"), Verdict.MISCONFIGURED),
]
ROWS = [(name, fault, verdict) for name in HTTP for fault, verdict in COMMON] + OWN


def send(name: str, **fields: Any) -> Outcome:
    return PROVIDERS[name].send(make_mail(**fields))


@pytest.mark.parametrize(("name", "fault", "verdict"), ROWS)
def test_each_answer_means_what_the_table_says_and_was_asked_once(provider, name, fault, verdict):
    provider.fail(**fault)
    outcome = send(name)
    assert (outcome.verdict, outcome.provider) == (verdict, name), outcome
    assert provider.stats()["requests"] == 1  # no hidden retry


@pytest.mark.parametrize("name", HTTP)
def test_an_accepted_mail_brings_its_ids_both_parts_and_a_message_id(provider, name):
    mail = make_mail(to_name="Ali Ü.", subject="Grüße")
    outcome = PROVIDERS[name].send(mail)
    (received,) = provider.mails
    assert outcome == Outcome(Verdict.ACCEPTED, name, received.message_id)
    assert (received.provider, received.to, received.subject) == (name, "alice@example.com", "Grüße")
    assert received.notification_id == str(mail.id)
    assert (received.order_id, received.event_type) == (str(mail.order_id), "order.paid")
    assert "Paid." in received.text and "<p>Paid.</p>" in received.html
    assert received.headers["Message-ID"] == message_id(mail.id)


@pytest.mark.parametrize("name", HTTP)
def test_a_connection_that_is_refused_is_transient(provider, name):
    provider.stop()
    assert send(name).verdict is Verdict.TRANSIENT


@pytest.mark.parametrize("name", HTTP)
def test_a_key_that_is_refused_is_ours(provider, name):
    provider.api_key = "another"
    assert send(name).verdict is Verdict.MISCONFIGURED


@pytest.mark.parametrize("name", HTTP)
def test_a_pause_lasts_as_long_as_it_was_asked_for(provider, name):
    provider.fail(kind="status", status=429, headers={"Retry-After": "7"})
    assert send(name).wait == (None if name == "ses" else 7)


def test_resend_knows_a_mail_again_by_its_key(provider):
    provider.fail(kind="accept_then_reset", times=1)
    mail = make_mail()
    assert PROVIDERS["resend"].send(mail).verdict is Verdict.AMBIGUOUS
    again = PROVIDERS["resend"].send(mail)
    (received,) = provider.mails
    assert again == Outcome(Verdict.ACCEPTED, "resend", received.message_id)
    assert received.request_headers["Idempotency-Key"] == str(mail.id)
    mail.subject = "another content"
    assert PROVIDERS["resend"].send(mail).verdict is Verdict.PERMANENT
    assert PROVIDERS["resend"].idempotent and not PROVIDERS["sendgrid"].idempotent


@pytest.mark.parametrize("name", HTTP)
def test_a_name_cannot_add_a_header(provider, name):
    assert send(name, to_name="A\r\nBcc: evil@example.com").verdict is Verdict.ACCEPTED
    (received,) = provider.mails
    assert received.to == "alice@example.com"


class TestSmtp:
    def test_an_accepted_mail_carries_its_ids_as_headers(self, smtp):
        mail = make_mail()
        outcome = PROVIDERS["smtp"].send(mail)
        assert outcome == Outcome(Verdict.ACCEPTED, "smtp", message_id(mail.id))
        (text,) = smtp.messages
        assert f"X-Notification-Id: {mail.id}" in text and f"Message-ID: {message_id(mail.id)}" in text

    @pytest.mark.parametrize(
        ("command", "reply", "verdict"),
        [
            ("CONNECT", "421 too busy", Verdict.TRANSIENT),
            ("CONNECT", "drop", Verdict.TRANSIENT),
            ("CONNECT", "hang", Verdict.TRANSIENT),
            ("MAIL", "550 who are you", Verdict.MISCONFIGURED),
            ("MAIL", "451 later", Verdict.TRANSIENT),
            ("RCPT", "550 no such user", Verdict.PERMANENT),
            ("RCPT", "450 mailbox busy", Verdict.TRANSIENT),
            ("DATA", "554 no", Verdict.PERMANENT),
            ("DATA", "452 no room", Verdict.TRANSIENT),
            ("DOT", "554 spam", Verdict.PERMANENT),
            ("DOT", "451 later", Verdict.TRANSIENT),
            ("DOT", "drop", Verdict.AMBIGUOUS),
            ("DOT", "hang", Verdict.AMBIGUOUS),
            ("RCPT", "drop", Verdict.TRANSIENT),
            ("DATA", "drop", Verdict.TRANSIENT),
            ("DATA", "454 Throttling failure", Verdict.THROTTLED),
        ],
    )
    def test_each_reply_means_what_the_table_says(self, smtp, command, reply, verdict):
        smtp.replies[command] = reply
        assert send("smtp").verdict is verdict

    def test_a_connection_that_is_refused_is_transient(self, smtp):
        smtp.shutdown()
        smtp.server_close()
        assert send("smtp").verdict is Verdict.TRANSIENT
