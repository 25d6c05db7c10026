"""Each reply of an SMTP server, its faults with and without TLS, and a server that is slow."""

from __future__ import annotations

import email
import email.policy
import time

import pytest

from local.machine import free_port
from local.sandbox import Sandbox
from tests.kit.certificates import make_server_context
from tests.kit.mails import make_claimed, make_mail
from tests.kit.providers import REPLY_TO, set_timeouts
from tests.kit.smtp import SmtpServer
from tests.kit.waiting import PATIENCE, until
from tests.kit.words import PROVIDERS, Outcome, Verdict, drain, message_id

pytestmark = pytest.mark.django_db


def test_an_accepted_mail_carries_its_ids_as_headers(smtp):
    mail = make_mail()
    outcome = PROVIDERS["smtp"].send(mail)
    assert outcome == Outcome(Verdict.ACCEPTED, "smtp", message_id(mail))
    (text,) = smtp.messages
    assert f"X-Notification-Id: {mail.id}" in text and f"Message-ID: {message_id(mail)}" in text


@pytest.mark.parametrize(
    ("command", "reply", "verdict"),
    [
        ("CONNECT", "421 too busy", Verdict.UNREACHABLE),
        ("CONNECT", "drop", Verdict.UNREACHABLE),
        ("CONNECT", "hang", Verdict.UNREACHABLE),
        ("MAIL", "550 who are you", Verdict.SENDER_REFUSED),
        ("MAIL", "451 later", Verdict.TRANSIENT),
        ("RCPT", "550 no such user", Verdict.PERMANENT),
        ("RCPT", "450 mailbox busy", Verdict.TRANSIENT),
        ("DATA", "554 no", Verdict.PERMANENT),
        ("DATA", "452 no room", Verdict.TRANSIENT),
        ("DOT", "554 spam", Verdict.PERMANENT),
        ("DOT", "451 later", Verdict.TRANSIENT),
        ("DOT", "drop", Verdict.AMBIGUOUS),
        ("DOT", "hang", Verdict.AMBIGUOUS),
        ("DOT", "no code", Verdict.AMBIGUOUS),
        ("DOT", "550 " + "x" * 9000, Verdict.AMBIGUOUS),  # smtplib reads no such line
        ("RCPT", "550 " + "x" * 9000, Verdict.TRANSIENT),
        ("RCPT", "drop", Verdict.TRANSIENT),
        ("DATA", "drop", Verdict.TRANSIENT),
        ("DATA", "454 Throttling failure", Verdict.THROTTLED),
    ],
)
def test_each_reply_means_what_the_table_says(smtp, command, reply, verdict):
    smtp.replies[command] = reply
    assert PROVIDERS["smtp"].send(make_mail()).verdict is verdict


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("501 Syntactically invalid HELO argument(s)", Verdict.MISCONFIGURED),
        ("421 too busy", Verdict.UNREACHABLE),
        ("drop", Verdict.UNREACHABLE),
        ("hang", Verdict.UNREACHABLE),
    ],
)
def test_a_refused_ehlo_and_helo_are_not_the_mails_fault(smtp, reply, verdict):
    smtp.replies |= {"EHLO": reply, "HELO": reply}
    assert PROVIDERS["smtp"].send(make_mail()).verdict is verdict
    smtp.replies.clear()
    assert PROVIDERS["smtp"].send(make_mail()).verdict is Verdict.ACCEPTED


def test_a_connection_that_is_refused_means_that_the_server_cannot_be_reached(smtp, settings):
    settings.EMAIL_PORT = free_port()
    assert PROVIDERS["smtp"].send(make_mail()).verdict is Verdict.UNREACHABLE


GMAIL = """550-5.4.5 Daily user sending limit exceeded. For more information on Gmail\r
550-5.4.5 sending limits go to\r
550 5.4.5  https://support.google.com/a/answer/166852 d2e1a72fcca58 - gsmtp"""
EXCHANGE = (
    "554 5.2.0 STOREDRV.Submission.Exception:SubmissionQuotaExceededException; Failed to process message"
    " due to a permanent exception with message The message can't be submitted because the sender's"
    " submission quota was exceeded."
)
RECIPIENTS = (
    "550 5.1.90 Your message can't be sent because you've reached your daily limit for message recipients"
)


@pytest.mark.parametrize("command", ["MAIL", "RCPT", "DATA", "DOT"])
@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        (GMAIL, Verdict.MISCONFIGURED),
        (EXCHANGE, Verdict.MISCONFIGURED),
        (RECIPIENTS, Verdict.MISCONFIGURED),
        ("550 5.7.233 Your tenant has exceeded its limit for sending to recipients", Verdict.MISCONFIGURED),
        ("550 Domain a.test has exceeded the max emails per hour (201/200 (100%))", Verdict.MISCONFIGURED),
        ("554 5.7.1 Data command rejected: limit of 400 rcpts per 24 hours reached", Verdict.MISCONFIGURED),
        ("554 5.7.1 Data command rejected: only 10 messages per day", Verdict.MISCONFIGURED),
        ("554 Sending paused for this account", Verdict.MISCONFIGURED),
        ("550 5.7.1 Your SMTP account has been temporarily suspended", Verdict.MISCONFIGURED),
        ("550 The from address does not match a verified Sender Identity.", Verdict.SENDER_REFUSED),
        ("554 Message rejected: Email address is not verified.", Verdict.SENDER_REFUSED),
    ],
)
def test_a_permanent_code_about_our_account_is_not_the_emails_fault(smtp, command, reply, verdict):
    smtp.replies[command] = reply
    assert PROVIDERS["smtp"].send(make_mail()).verdict is verdict


@pytest.mark.parametrize("command", ["RCPT", "DOT"])
@pytest.mark.parametrize(
    "reply",
    [
        "552 5.2.2 The email account that you tried to reach is over quota",
        "552 5.2.2 mailbox exceeded its storage limit",
        "550 5.2.1 The email account that you tried to reach is disabled",
        "550 5.2.1 The user you are trying to contact is receiving mail at a rate that prevents more",
        "550 5.1.1 Quota exceeded (mailbox for user is full)",
        "550 This account has been suspended",
        "552 5.3.4 Message size exceeds fixed limit",
        "552 message exceeds the maximum message size limit of 10 MB",
        "550 5.7.1 Message rejected as spam",
    ],
)
def test_a_permanent_code_about_the_recipient_or_the_message_stays_permanent(smtp, command, reply):
    smtp.replies[command] = reply
    assert PROVIDERS["smtp"].send(make_mail()).verdict is Verdict.PERMANENT


SESSION = "452 4.4.5 Maximum number of messages per session exceeded"


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        ("IDLE", "421 4.4.2 Error: timeout exceeded"),
        ("IDLE", "drop"),
        ("IDLE", "reset"),
        ("MAIL", "421 4.7.0 too many messages on this connection"),
        ("MAIL", "drop"),
        ("MAIL", "reset"),
        ("RCPT", "421 too many"),
        ("RCPT", "drop"),
        ("DATA", "421 too many"),
        ("DATA", "reset"),
        ("MAIL", SESSION),
        ("DATA", SESSION),
    ],
)
def test_the_end_of_a_kept_connection_delays_no_email(smtp, command, reply):
    smtp.kept_for, smtp.last_replies = 3, {command: reply}
    outcomes = [PROVIDERS["smtp"].send(make_mail()) for _ in range(10)]
    assert [outcome.verdict for outcome in outcomes] == [Verdict.ACCEPTED] * 10
    assert len(smtp.messages) == 10  # each once
    assert smtp.connections == 4


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("421 shutting down", Verdict.TRANSIENT),
        ("drop", Verdict.AMBIGUOUS),
        ("reset", Verdict.AMBIGUOUS),
    ],
)
def test_a_kept_connection_that_ends_after_the_final_dot_is_not_replaced_for_the_same_email(
    smtp, reply, verdict
):
    smtp.kept_for, smtp.last_replies = 1, {"DOT": reply}
    assert PROVIDERS["smtp"].send(make_mail()).verdict is Verdict.ACCEPTED
    assert PROVIDERS["smtp"].send(make_mail()).verdict is verdict
    assert smtp.connections == 1


@pytest.mark.parametrize("command", ["MAIL", "RCPT", "DATA"])
@pytest.mark.parametrize("reply", ["421 too busy", "drop"])
def test_a_new_connection_that_ends_is_the_servers_failure(smtp, command, reply):
    smtp.replies[command] = reply
    assert PROVIDERS["smtp"].send(make_mail()).verdict is Verdict.TRANSIENT
    assert smtp.connections == 1


def test_a_refused_reconnect_means_that_the_server_cannot_be_reached(smtp):
    smtp.kept_for, smtp.last_replies = 1, {"MAIL": "drop"}
    assert PROVIDERS["smtp"].send(make_mail()).verdict is Verdict.ACCEPTED
    smtp.replies["CONNECT"] = "421 too busy"
    assert PROVIDERS["smtp"].send(make_mail()).verdict is Verdict.UNREACHABLE


def test_a_kept_connection_that_stays_silent_uses_up_the_time_of_the_send(smtp):
    smtp.kept_for, smtp.last_replies = 1, {"MAIL": "hang"}
    assert PROVIDERS["smtp"].send(make_mail()).verdict is Verdict.ACCEPTED
    assert PROVIDERS["smtp"].send(make_mail()).verdict is Verdict.TRANSIENT
    assert smtp.connections == 1


def test_an_email_is_given_back_if_the_process_stops_when_the_kept_connection_ends(smtp):
    smtp.kept_for, smtp.last_replies = 1, {"RCPT": "drop"}
    assert PROVIDERS["smtp"].send(make_mail()).verdict is Verdict.ACCEPTED
    answers = iter([True, True])  # asked before MAIL and before RCPT
    outcome = PROVIDERS["smtp"].send(make_mail(), may_continue=lambda: next(answers, False))
    assert outcome.verdict is Verdict.RETURNED
    assert smtp.connections == 1


def test_the_server_need_not_answer_the_quit_of_an_idle_connection(smtp, settings, monkeypatch):
    settings.EMAIL_READ_TIMEOUT = 30
    monkeypatch.setattr("notifications.providers.base.IDLE_SECONDS", 0.0)
    smtp.replies["QUIT"] = "hang"
    outcomes = [PROVIDERS["smtp"].send(make_mail()) for _ in range(2)]
    assert [outcome.verdict for outcome in outcomes] == [Verdict.ACCEPTED] * 2
    assert smtp.connections == 2
    until(lambda: smtp.hanging == 1, "the first QUIT has arrived and has no reply")


@pytest.mark.parametrize("command", ["CONNECT", "EHLO", "MAIL", "RCPT", "DATA", "DOT"])
def test_blank_lines_before_a_reply_are_skipped(smtp, command):
    usual = {"CONNECT": "220 ready", "DATA": "354 go on"}.get(command, "250 OK")
    smtp.replies[command] = f"\r\n\r\n{usual}"
    outcomes = [PROVIDERS["smtp"].send(make_mail()) for _ in range(2)]
    assert [outcome.verdict for outcome in outcomes] == [Verdict.ACCEPTED] * 2
    assert smtp.connections == 1


def test_a_reply_of_blank_lines_alone_is_ambiguous(smtp):
    smtp.replies["DOT"] = "\r\n" * 1000
    assert PROVIDERS["smtp"].send(make_mail()).verdict is Verdict.AMBIGUOUS


def test_smtp_has_no_reply_to_unless_it_is_set(smtp):
    PROVIDERS["smtp"].send(make_mail())
    message = email.message_from_string(smtp.messages[0], policy=email.policy.default)
    assert (message["Auto-Submitted"], message["Reply-To"]) == ("auto-generated", None)


@pytest.mark.parametrize(("reply_to", "address"), REPLY_TO)
def test_smtp_has_both_headers(smtp, reply_to, address):
    PROVIDERS["smtp"].send(make_mail(reply_to=reply_to))
    message = email.message_from_string(smtp.messages[0], policy=email.policy.default)
    (answers,) = message["Reply-To"].addresses
    assert (answers.addr_spec, answers.display_name) == (address["email"], address.get("name", ""))
    assert message["Auto-Submitted"] == "auto-generated"


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


@pytest.fixture
def server(settings):
    with Sandbox() as sandbox, SmtpServer(sandbox=sandbox, delay=0.1) as server:
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", server.port
        PROVIDERS["smtp"].close()
        yield server
        PROVIDERS["smtp"].close()


def test_a_message_whose_replies_take_longer_than_the_timeouts_together_is_sent(server, settings):
    set_timeouts(settings, seconds=2)
    server.delay = 0.8
    began = time.monotonic()
    assert PROVIDERS["smtp"].send(make_mail()).verdict is Verdict.ACCEPTED
    assert time.monotonic() - began > 2 + 2  # else the server was not slow enough


def test_a_dialogue_that_lasts_until_the_deadline_fails_and_sends_no_message(server, settings, valkey_url):
    settings.EMAIL_PROVIDERS = ["smtp"]
    drain.reset()
    email = make_claimed()
    email.deadline_at = time.monotonic() + 0.2  # the greeting and EHLO alone take as long
    outcome = drain.current().send(email)
    assert outcome.verdict is Verdict.TRANSIENT and "lease" in outcome.text
    assert server.accepted == 0
    email.deadline_at = time.monotonic() + PATIENCE
    assert drain.current().send(email).verdict is Verdict.ACCEPTED
    assert server.accepted == 1


@pytest.mark.parametrize("replies", [0, 1, 2, 3])
def test_no_message_is_sent_once_it_may_not_continue_during_the_dialogue(server, replies):
    answers = iter([True] * replies)
    outcome = PROVIDERS["smtp"].send(make_mail(), may_continue=lambda: next(answers, False))
    assert outcome.verdict is Verdict.RETURNED
    assert server.accepted == 0
    assert PROVIDERS["smtp"].send(make_mail()).verdict is Verdict.ACCEPTED
