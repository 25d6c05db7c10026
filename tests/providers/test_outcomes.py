"""Every row of every provider's table of outcomes, over its real protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from email.header import decode_header, make_header
from typing import Any

import pytest

from notifications.providers.causes import blame
from notifications.providers.http import pause_asked_for
from tests.kit.http import serve
from tests.kit.mails import make_mail
from tests.kit.providers import HTTP, REPLY_TO, close, lead_to, set_timeouts
from tests.kit.words import PROVIDERS, Outcome, Verdict, message_id

pytestmark = pytest.mark.django_db


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
    (status(504), Verdict.AMBIGUOUS),  # a gateway's: the provider behind it may have the e-mail
    ({"kind": "accept_then_status", "status": 504}, Verdict.AMBIGUOUS),
    ({"kind": "hang", "seconds": 3}, Verdict.AMBIGUOUS),
    ({"kind": "reset"}, Verdict.AMBIGUOUS),
    ({"kind": "accept_then_reset"}, Verdict.AMBIGUOUS),
]
#: These come from what is in front of a provider. One provider of each library is asked.
GATEWAYS = [
    (name, status(code), verdict)
    for name in ("sendgrid", "ses")
    for codes, verdict in (
        ((521, 522, 523, 525, 526), Verdict.TRANSIENT),
        ((502, 520, 524), Verdict.AMBIGUOUS),
    )
    for code in codes
]
OWN = [
    ("sendgrid", status(413), Verdict.PERMANENT),
    (
        "sendgrid",
        status(403, message="The from address does not match a verified Sender Identity."),
        Verdict.SENDER_REFUSED,
    ),
    ("resend", status(403, message="validation_error"), Verdict.SENDER_REFUSED),
    ("ses", status(404, message="Configuration set <a> does not exist."), Verdict.SENDER_REFUSED),
    (
        "mailgun",
        status(403, message="Domain a.test is not allowed to send: unverified"),
        Verdict.SENDER_REFUSED,
    ),
    ("resend", status(422), Verdict.PERMANENT),
    ("resend", status(409), Verdict.PERMANENT),  # the key was used for another content
    ("resend", status(409, message="concurrent_idempotent_requests"), Verdict.AMBIGUOUS),
    ("ses", status(400, message="MessageRejected"), Verdict.PERMANENT),
    ("ses", status(400, message="LimitExceededException"), Verdict.THROTTLED),
    ("ses", status(400, message="TooManyRequestsException"), Verdict.THROTTLED),
    ("ses", status(400, message="AccountSuspendedException"), Verdict.MISCONFIGURED),
    ("ses", status(400, message="SendingPausedException"), Verdict.MISCONFIGURED),
    ("ses", status(400, message="MailFromDomainNotVerifiedException"), Verdict.SENDER_REFUSED),
    ("ses", status(400, message="Email address is not verified."), Verdict.SENDER_REFUSED),
    ("ses", status(403, message="SignatureDoesNotMatch"), Verdict.MISCONFIGURED),
    ("ses", status(400, message="RequestExpired"), Verdict.MISCONFIGURED),
    ("ses", status(408), Verdict.TRANSIENT),
    # A gateway's answer is ambiguous, whatever its body says.
    ("ses", status(504, message="TooManyRequestsException"), Verdict.AMBIGUOUS),
    ("resend", status(502, message="invalid_from_address"), Verdict.AMBIGUOUS),
    ("mailgun", status(502, message="Mailgun Magnificent API"), Verdict.AMBIGUOUS),
    ("resend", status(422, message="invalid_from_address"), Verdict.SENDER_REFUSED),
    ("postmark", status(413), Verdict.PERMANENT),
    ("postmark", status(422, message="300 Invalid 'To' address: 'x'."), Verdict.PERMANENT),
    ("postmark", status(422, message="300 Invalid 'From' address: 'x'."), Verdict.SENDER_REFUSED),
    ("postmark", status(422, message="406 You tried to send to an inactive recipient."), Verdict.PERMANENT),
    ("postmark", status(422, message="300 Invalid 'To' address: 'quota@a'."), Verdict.PERMANENT),
    ("postmark", status(422, message="411 Forbidden attachment type"), Verdict.PERMANENT),
    ("postmark", status(401, message="10 Bad or missing API token"), Verdict.MISCONFIGURED),
    ("postmark", status(422, message="100 Maintenance"), Verdict.TRANSIENT),
    ("postmark", status(422, message="400 Sender signature not found"), Verdict.SENDER_REFUSED),
    ("postmark", status(422, message="401 Sender signature not confirmed"), Verdict.SENDER_REFUSED),
    ("postmark", status(422, message="405 Not allowed to send"), Verdict.MISCONFIGURED),
    ("postmark", status(422, message="412 Account is pending"), Verdict.MISCONFIGURED),
    ("postmark", status(422, message="413 Account may not send"), Verdict.MISCONFIGURED),
    ("postmark", status(422, message="1235 No such message stream"), Verdict.SENDER_REFUSED),
    ("postmark", status(415), Verdict.MISCONFIGURED),
    ("mailgun", status(413), Verdict.PERMANENT),
    ("mailgun", status(400, message="to parameter is not a valid address"), Verdict.PERMANENT),
    ("mailgun", status(400, message="'from' parameter is not a valid address"), Verdict.SENDER_REFUSED),
    ("mailgun", status(402), Verdict.MISCONFIGURED),
    ("mailgun", status(404, message="Domain not found: example.com"), Verdict.SENDER_REFUSED),
    ("mailgun", status(200, message="Mailgun Magnificent API"), Verdict.MISCONFIGURED),
    ("mailgun", status(200, message="Hello from a proxy"), Verdict.AMBIGUOUS),
]
#: Limits of our account that come with a status about the message.
LIMITS = [
    (name, status(400, message=message), Verdict.MISCONFIGURED)
    for name in HTTP
    for message in (
        "account under review",
        "Your account is under review. Contact support.",
        "You have exceeded your messaging quota.",
        "Daily sending limit exceeded",
        "Your account has been temporarily disabled",
    )
]
ROWS = [(name, fault, verdict) for name in HTTP for fault, verdict in COMMON] + GATEWAYS + OWN + LIMITS


def send(name: str, **fields: Any) -> Outcome:
    return PROVIDERS[name].send(make_mail(**fields))


@pytest.mark.parametrize(("name", "fault", "verdict"), ROWS)
def test_each_answer_means_what_the_table_says_and_was_asked_once(provider, settings, name, fault, verdict):
    if "hang" in fault["kind"]:
        set_timeouts(settings, seconds=1)
    provider.fail(**fault)
    outcome = send(name)
    assert (outcome.verdict, outcome.provider) == (verdict, name), outcome
    assert provider.stats()["requests"] == 1  # no hidden retry


#: The answer of each provider to an accepted e-mail with the id m1.
YES: dict[str, dict[str, Any]] = {
    "sendgrid": {},
    "ses": {"MessageId": "m1"},
    "resend": {"id": "m1"},
    "postmark": {"ErrorCode": 0, "Message": "OK", "MessageID": "m1", "To": "alice@example.com"},
    "mailgun": {"id": "m1", "message": "Queued. Thank you."},
}
#: Answers that say yes in an unusual way.
ODD_YES = [
    ("postmark", YES["postmark"] | {"To": "x"}),
    ("postmark", YES["postmark"] | {"To": None}),
    ("postmark", YES["postmark"] | {"To": ["alice@example.com"]}),
    ("postmark", {"ErrorCode": 0, "MessageID": "m1", "To": "x"}),
    ("postmark", {"Message": "Message accepted, but delivery may be delayed.", "MessageID": "m1"}),
    ("mailgun", YES["mailgun"] | {"message": None}),
    ("mailgun", YES["mailgun"] | {"message": "Accepted."}),
    ("mailgun", {"id": "m1"}),
    ("resend", YES["resend"] | {"data": None}),
    ("ses", YES["ses"] | {"ResponseMetadata": []}),
]
IDS = {"ses": "MessageId", "resend": "id", "postmark": "MessageID", "mailgun": "id"}
#: Answers that say neither yes nor no.
UNREADABLE: list[Any] = [
    b"",
    b"<html>Sign in to the hotel's WLAN</html>",
    b"\xff\xfe",
    b"[" * 100_000,
    [],
    [[]],
    "m1",
    5,
    None,
    {},
    {"data": [{}]},
    {"data": []},
    {"PercentageCompleted": 5},
]


@pytest.fixture
def answer(settings, monkeypatch) -> Iterator[Callable[[Any], None]]:
    """Let every provider with an API give the answer that the test sets, with its own status for a yes."""
    answers: list[Any] = []

    def say(path: str, headers: Any, body: bytes) -> tuple[int, Any, dict[str, str]]:
        return 202 if path.endswith("/mail/send") else 200, answers[0], {"X-Message-Id": "m1"}

    with serve(say, read=bytes) as url:
        lead_to(url, settings=settings, monkeypatch=monkeypatch)
        yield answers.append
        close()


@pytest.mark.parametrize(("name", "body"), [*YES.items(), *ODD_YES])
def test_a_yes_is_a_yes_whatever_else_is_in_it(answer, name, body):
    answer(body)
    assert send(name) == Outcome(Verdict.ACCEPTED, name, "m1")


@pytest.mark.parametrize("body", UNREADABLE, ids=lambda body: repr(body)[:30])
@pytest.mark.parametrize("name", IDS)
def test_an_unreadable_2xx_is_never_a_refusal(answer, name, body):
    answer(body)
    assert send(name).verdict is Verdict.AMBIGUOUS


@pytest.mark.parametrize("id", [None, 5, "", [], ["m1"], {"m": 1}])
@pytest.mark.parametrize("name", IDS)
def test_a_2xx_without_a_readable_id_is_ambiguous(answer, name, id):
    answer(YES[name] | {IDS[name]: id})
    assert send(name).verdict is Verdict.AMBIGUOUS


@pytest.mark.parametrize(
    ("status", "headers", "outcome"),
    [
        (202, {}, Outcome(Verdict.ACCEPTED, "sendgrid")),
        (200, {"X-Message-Id": "m1"}, Outcome(Verdict.ACCEPTED, "sendgrid", "m1")),
        (200, {}, Outcome(Verdict.AMBIGUOUS, "sendgrid", code="200", text="{}")),
    ],
)
def test_sendgrid_accepts_with_202_or_an_id(settings, monkeypatch, status, headers, outcome):
    with serve(lambda *_: (status, {}, headers), read=bytes) as url:
        lead_to(url, settings=settings, monkeypatch=monkeypatch)
        assert send("sendgrid") == outcome
        close()


@pytest.mark.parametrize(
    ("name", "body"),
    [
        *(
            ("postmark", YES["postmark"] | {"ErrorCode": code, "Message": "the 'From' address"})
            for code in (10, 300, 400, 405, 406, 429)
        ),
        ("resend", {"name": "invalid_idempotent_request", "message": "the same key"}),
        ("resend", {"name": "validation_error", "message": "not verified"}),
        ("mailgun", {"message": "'from' parameter is not a valid address"}),
    ],
)
def test_a_refusal_with_2xx_contradicts_itself_and_is_ambiguous(answer, name, body):
    answer(body)
    assert send(name).verdict is Verdict.AMBIGUOUS


@pytest.mark.parametrize("name", HTTP)
def test_an_accepted_mail_brings_its_ids_both_parts_and_a_message_id(provider, name):
    mail = make_mail(to_name="Ali Ü.", subject="Grüße")
    outcome = PROVIDERS[name].send(mail)
    (received,) = provider.mails
    id = f"<{received.message_id}@sandbox.mailgun.org>" if name == "mailgun" else received.message_id
    assert outcome == Outcome(Verdict.ACCEPTED, name, id)
    assert (received.provider, received.to, received.subject) == (name, "alice@example.com", "Grüße")
    assert received.notification_id == str(mail.id)
    assert (received.order_id, received.event_type) == (str(mail.order_id), "order.paid")
    assert "Paid." in received.text and "<p>Paid.</p>" in received.html
    assert received.headers["Message-ID"] == message_id(mail)


@pytest.mark.parametrize("name", HTTP)
def test_a_connection_that_is_refused_means_that_the_provider_cannot_be_reached(provider, name):
    provider.stop()
    assert send(name).verdict is Verdict.UNREACHABLE


@pytest.mark.parametrize("name", HTTP)
def test_a_key_that_is_refused_is_ours(provider, name):
    provider.api_key = "another"
    assert send(name).verdict is Verdict.MISCONFIGURED


@pytest.mark.parametrize("key", ["key\u200b", "se\ncret"])
@pytest.mark.parametrize(
    ("name", "setting"),
    [("sendgrid", "SENDGRID_API_KEY"), ("resend", "RESEND_API_KEY"), ("postmark", "POSTMARK_SERVER_TOKEN")],
)
def test_a_key_that_no_header_can_have_is_ours_and_is_not_told(provider, settings, name, setting, key):
    settings.ANYMAIL = settings.ANYMAIL | {setting: key}
    outcome = send(name)
    assert outcome.verdict is Verdict.MISCONFIGURED
    assert "cret" not in outcome.error
    assert setting in blame(provider=name, error=outcome.error)
    assert provider.stats()["requests"] == 0


@pytest.mark.parametrize("name", HTTP)
def test_a_pause_lasts_as_long_as_it_was_asked_for(provider, name):
    provider.fail(kind="status", status=429, headers={"Retry-After": "7"})
    assert send(name).wait_seconds == (None if name == "ses" else 7)


@pytest.mark.parametrize(
    "headers",
    [
        {"Retry-After": "soon"},
        {"Retry-After": "-5"},
        {"Retry-After": "²"},
        {"Retry-After": "Thu, 99 Foo 2026 99:99:99 GMT"},
        {"Retry-After": "Thu, 01 Jan 9999999 00:00:00 GMT"},
        {"X-RateLimit-Reset": "nan"},
        {"X-RateLimit-Reset": "inf"},
        {"X-RateLimit-Reset": "tomorrow"},
    ],
)
@pytest.mark.parametrize("date", ["yesterday", "Thu, 99 Foo 2026 99:99:99 GMT", "", None])
def test_a_pause_that_cannot_be_read_is_still_a_pause(headers, date):
    assert pause_asked_for(headers | ({} if date is None else {"Date": date})) is None


@pytest.mark.parametrize("date", ["yesterday", ""])
def test_a_date_that_cannot_be_read_leaves_the_pause_as_it_was_asked_for(date):
    assert pause_asked_for({"Retry-After": "7", "Date": date}) == 7
    reset = pause_asked_for({"X-RateLimit-Reset": str(int(time.time()) + 100), "Date": date})
    assert reset is not None and 50 < reset <= 100


def test_a_pause_lasts_until_the_time_that_was_named_by_the_providers_clock():
    named = {"Retry-After": "Thu, 01 Jan 2026 00:01:00 GMT", "Date": "Thu, 01 Jan 2026 00:00:00 GMT"}
    assert pause_asked_for(named) == 60


def test_a_malformed_date_over_the_wire_pauses(provider):
    provider.fail(kind="status", status=429, headers={"Retry-After": "soon", "Date": "yesterday"})
    outcome = send("sendgrid")
    assert (outcome.verdict, outcome.wait_seconds) == (Verdict.THROTTLED, None)


@pytest.mark.parametrize("url", ["http://no-such-host.invalid/v3/", "http://127.0.0.1:port/v3/"])
def test_an_address_that_leads_nowhere_is_not_the_mails_fault(provider, settings, url):
    settings.ANYMAIL = settings.ANYMAIL | {"SENDGRID_API_URL": url}
    assert send("sendgrid").verdict is Verdict.UNREACHABLE


@pytest.mark.parametrize("answers", [True, False])
def test_a_proxy_that_does_not_lead_there_is_not_the_mails_fault(provider, settings, monkeypatch, answers):
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    port = provider.port if answers else 1  # as a proxy the sandbox refuses CONNECT
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
    settings.ANYMAIL = settings.ANYMAIL | {"SENDGRID_API_URL": "https://api.sendgrid.com/v3/"}
    assert send("sendgrid").verdict is Verdict.UNREACHABLE


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
    assert PROVIDERS["resend"].is_idempotent and not PROVIDERS["sendgrid"].is_idempotent


@pytest.mark.parametrize("name", HTTP)
@pytest.mark.parametrize("to_name", ["Smith, Ann", "A\r\nBcc: evil@example.com"])
def test_a_name_adds_neither_a_recipient_nor_a_header(provider, name, to_name):
    assert send(name, to_name=to_name).verdict is Verdict.ACCEPTED
    (received,) = provider.mails
    assert received.to == "alice@example.com"


@pytest.mark.parametrize("name", HTTP)
def test_an_email_says_that_nobody_wrote_it(provider, name):
    assert PROVIDERS[name].send(make_mail()).verdict is Verdict.ACCEPTED
    (received,) = provider.mails
    assert received.headers["Auto-Submitted"] == "auto-generated"
    assert received.reply_to == []


@pytest.mark.parametrize("name", HTTP)
@pytest.mark.parametrize(("reply_to", "address"), REPLY_TO)
def test_an_answer_goes_where_the_shop_wants_it(provider, name, reply_to, address):
    assert PROVIDERS[name].send(make_mail(reply_to=reply_to)).verdict is Verdict.ACCEPTED
    (received,) = provider.mails
    (answers,) = received.reply_to
    assert answers["email"] == address["email"]
    assert str(make_header(decode_header(answers.get("name", "")))) == address.get("name", "")
    assert received.headers["Auto-Submitted"] == "auto-generated"
