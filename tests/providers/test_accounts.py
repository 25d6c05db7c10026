"""A profile's options of a provider's account reach the provider's request, and only that provider's."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils.module_loading import import_string

from tests.kit.mails import make_mail
from tests.kit.words import PROVIDERS, Verdict, declarations

pytestmark = pytest.mark.django_db
ACCOUNT = {
    "mailgun": {"domain": "mg.shop-a.test"},
    "postmark": {"message_stream": "shop-a"},
    "ses": {"configuration_set": "shop-a"},
}
#: Where a provider's request has its option.
READ = {
    "mailgun": lambda payload: payload.get_api_endpoint(),
    "postmark": lambda payload: payload.data["MessageStream"],
    "ses": lambda payload: payload.params["ConfigurationSetName"],
}


def payload_of(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the request that a provider would get."""
    provider, messages = PROVIDERS[name], list[Any]()

    class Connection:
        send_messages = staticmethod(messages.extend)

    monkeypatch.setattr(provider, "_connection", Connection)
    monkeypatch.setattr(provider, "accepted", lambda _: None)
    mail = make_mail(from_email="orders@shop-a.test")
    provider.send(mail, account=ACCOUNT)
    backend = import_string(provider.backend)()
    return backend.build_message_payload(messages[0], backend.send_defaults)


@pytest.mark.parametrize("name", ACCOUNT)
def test_an_option_is_in_the_request(provider, monkeypatch, name):
    (value,) = ACCOUNT[name].values()
    assert value in READ[name](payload_of(name, monkeypatch))


def test_every_declared_option_is_tried_here():
    declared = {
        name: set(declaration.account) for name, declaration in declarations().items() if declaration.account
    }
    assert declared == {name: set(options) for name, options in ACCOUNT.items()}


@pytest.mark.parametrize("name", ["sendgrid", "resend", *ACCOUNT])
def test_an_email_with_options_of_every_account_is_accepted(provider, name):
    mail = make_mail(from_email="orders@shop-a.test")
    assert PROVIDERS[name].send(mail, account=ACCOUNT).verdict is Verdict.ACCEPTED
    (received,) = provider.mails
    assert received.from_email == "orders@shop-a.test"
