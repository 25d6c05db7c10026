"""Real providers accept our requests, at their own test addresses, and refuse a wrong key as we read it.

A key is in the setting's variable with the prefix `LIVE_`, because tests clear the settings' own variables.
No e-mail reaches a person.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import pytest
from django.core.mail import EmailMultiAlternatives

from notifications.providers.ses import anymail_backend
from tests.kit.needs import reason
from tests.kit.providers import close, set_timeouts
from tests.kit.words import PROVIDERS, EmailNotification, Outcome, Verdict, declarations, new_id


@dataclasses.dataclass(frozen=True)
class Live:
    """How a provider lets one send without an e-mail to a person.

    needs   the settings that must be given
    to      the test address, or one at which nobody is
    extra   fields of the request that switch the test mode on
    """

    needs: tuple[str, ...]
    to: str = "nobody@example.com"
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)


#: From each provider's documentation: "Sandbox Mode", "Using the mailbox simulator", "Send Test Emails",
#: "Test token" (`POSTMARK_SERVER_TOKEN=POSTMARK_API_TEST` validates and sends nothing), "Test mode".
LIVE = {
    "sendgrid": Live(("SENDGRID_API_KEY",), extra={"mail_settings": {"sandbox_mode": {"enable": True}}}),
    "ses": Live(
        ("AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), to="success@simulator.amazonses.com"
    ),
    "resend": Live(("RESEND_API_KEY",), to="delivered@resend.dev"),
    "postmark": Live(("POSTMARK_SERVER_TOKEN",)),
    "mailgun": Live(("MAILGUN_API_KEY", "MAILGUN_SENDER_DOMAIN"), extra={"o:testmode": "yes"}),
}
SENDER = "DEFAULT_FROM_EMAIL"


@pytest.fixture(params=LIVE)
def live(request, settings, monkeypatch) -> Any:
    """Return the name of a provider whose keys are given, after its settings were set."""
    name = str(request.param)
    needs = (*LIVE[name].needs, SENDER)
    keys = {name_of_key: os.environ.get(f"LIVE_{name_of_key}", "") for name_of_key in needs}
    if missing := [f"LIVE_{name_of_key}" for name_of_key in needs if not keys[name_of_key]]:
        pytest.skip(reason("keys of providers", f"{name} needs {', '.join(missing)}"))
    declared = declarations()[name]
    places = {setting.name: setting for setting in declared.settings}
    anymail = {}
    for variable in (*places, *keys):
        value = os.environ.get(f"LIVE_{variable}") or (places[variable].default if variable in places else "")
        if variable in places and places[variable].anymail:
            anymail[places[variable].anymail] = value
        elif variable in places or variable == SENDER:
            setattr(settings, variable, value)
        else:  # the provider's library reads it
            monkeypatch.setenv(variable, str(value))
    settings.ANYMAIL = settings.ANYMAIL | anymail
    set_timeouts(settings, seconds=30)
    anymail_backend._session.cache_clear()  # it keeps the credentials of SES
    yield name
    close()


def send(name: str, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """Send one e-mail in the provider's test mode."""
    provider, how = PROVIDERS[name], LIVE[name]
    real = provider.prepare

    def prepare(message: EmailMultiAlternatives, mail: EmailNotification) -> None:
        real(message, mail)
        message.esp_extra = dict(how.extra)  # type: ignore[attr-defined]  # anymail's attribute

    monkeypatch.setattr(provider, "prepare", prepare)
    mail = EmailNotification(
        id=new_id(),
        order_id=new_id(),
        event_type="order.paid",
        recipient_email=how.to,
        to_name="Jörg Müller",
        subject="A test of orderpost",
        body="<p>Grüße</p>",
        body_text="Grüße",
    )
    return provider.send(mail)


def test_it_accepts_an_email_of_ours(live, monkeypatch):
    outcome = send(live, monkeypatch)
    assert outcome.verdict is Verdict.ACCEPTED, outcome.error


def test_a_wrong_key_is_our_setting_and_not_the_message(live, settings, monkeypatch):
    declared = declarations()[live]
    place = next((setting.anymail for setting in declared.settings if setting.name == declared.api_key), "")
    if place:
        settings.ANYMAIL = settings.ANYMAIL | {place: "wrong"}
    else:
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        anymail_backend._session.cache_clear()
    close()
    assert send(live, monkeypatch).verdict is Verdict.MISCONFIGURED
