"""Which posts a provider's webhook refuses by their headers alone, before anybody reads their bodies."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping

import pytest
from django.http.request import HttpHeaders
from django.test import Client

from notifications.providers import webhook as webhook_module
from notifications.providers.webhook import Webhook
from notifications.webhooks import may_be_signed, webhook_of
from tests.kit.waiting import replace_time
from tests.kit.words import declarations, make_key, sign

PRIVATE, PUBLIC = make_key()
SVIX_KEY = "whsec_" + base64.b64encode(b"k" * 32).decode()
PASSWORD = "hooks:secret"
KEYS = {
    "sendgrid": PUBLIC,
    "resend": SVIX_KEY,
    "postmark": PASSWORD,
    "ses": PASSWORD,
    "mailgun": "key",
}


def webhook(name: str, key: str | None = None) -> Webhook:
    return webhook_of(declarations()[name].webhook, KEYS[name] if key is None else key)


def basic(text: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


def sendgrid(**changes: str) -> dict[str, str]:
    sent_at = changes.pop("sent_at", str(int(time.time())))
    signature = changes.pop("signature", sign(sent_at.encode() + b"[]", key=PRIVATE))
    prefix = "X-Twilio-Email-Event-Webhook-"
    return {f"{prefix}Signature": signature, f"{prefix}Timestamp": sent_at}


def resend(prefix: str = "svix-", **changes: str) -> dict[str, str]:
    values = {
        "id": "msg_1",
        "timestamp": str(int(time.time())),
        "signature": f"v1,{base64.b64encode(b's' * 32).decode()}",
    } | changes
    return {prefix + name: value for name, value in values.items()}


NOW = time.time()
OLD = str(int(NOW) - 3600)


@pytest.mark.parametrize(
    ("name", "headers", "expected"),
    [
        ("sendgrid", sendgrid(), True),
        ("sendgrid", {}, False),
        ("sendgrid", sendgrid(signature=""), False),
        ("sendgrid", sendgrid(signature="not base64!"), False),
        ("sendgrid", sendgrid(signature="A" * 400), False),
        ("sendgrid", sendgrid(sent_at=OLD), False),
        ("sendgrid", sendgrid(sent_at="now"), False),
        ("sendgrid", sendgrid(sent_at="nan"), False),
        ("resend", resend(), True),
        ("resend", resend("webhook-"), True),
        ("resend", resend(signature=f"v1a,x v1,{base64.b64encode(b's' * 32).decode()}"), True),
        ("resend", {}, False),
        ("resend", resend(signature="v1,short"), False),
        ("resend", resend(timestamp=OLD), False),
        ("resend", resend(id=""), False),
        *(
            (name, headers, expected)
            for name in ("postmark", "ses")
            for headers, expected in (
                (basic(PASSWORD), True),
                (basic("hooks:wrong"), False),
                ({"Authorization": f"Bearer {PASSWORD}"}, False),
                ({"Authorization": "Basic %%%"}, False),
                ({}, False),
            )
        ),
        ("mailgun", {}, True),
    ],
)
def test_only_headers_in_the_form_of_a_signature_or_with_the_password_may_be_signed(
    name: str, headers: Mapping[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_time(monkeypatch, webhook_module, time=lambda: NOW)  # the headers are made when this is imported
    environ = {f"HTTP_{header.upper().replace('-', '_')}": value for header, value in headers.items()}
    assert webhook(name).may_be_signed(HttpHeaders(environ)) is expected


@pytest.mark.parametrize("name", KEYS)
def test_no_headers_are_refused_without_a_key(name: str) -> None:
    assert webhook(name, "").may_be_signed({})


def test_a_post_to_a_provider_that_is_not_in_use_is_refused_and_without_a_key_as_unsigned_ones_are(settings):
    settings.EMAIL_PROVIDERS = ["sendgrid"]
    settings.SENDGRID_WEBHOOK_VERIFICATION_KEY = ""
    for settings.DEBUG, settings.WEBHOOKS_UNSIGNED in ((False, False), (True, False), (False, True)):
        assert may_be_signed("sendgrid", {}) is (settings.DEBUG or settings.WEBHOOKS_UNSIGNED)
    for name in ("postmark", "smtp", "nobody", ""):
        assert not may_be_signed(name, basic(PASSWORD))


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["postmark", "ses"])
def test_a_refusal_by_headers_asks_for_the_password_as_sns_needs_it(settings, name):
    settings.EMAIL_PROVIDERS = [name]
    setattr(settings, declarations()[name].webhook_key, PASSWORD)
    answer = Client().post(f"/webhooks/{name}", b"not read", "application/json")
    assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, 'Basic realm="webhooks"')
