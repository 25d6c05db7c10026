"""Each provider gets the headers that every e-mail has, in the request that it is sent."""

from __future__ import annotations

import email
import email.policy
from email.header import decode_header, make_header

import pytest

from tests.kit.mails import make_mail
from tests.kit.words import PROVIDERS, Verdict
from tests.providers.test_outcomes import HTTP

pytestmark = pytest.mark.django_db
REPLY_TO = [
    ("help@shop.test", {"email": "help@shop.test"}),
    ("Müller & Söhne <help@shop.test>", {"email": "help@shop.test", "name": "Müller & Söhne"}),
]


@pytest.mark.parametrize("name", HTTP)
def test_an_email_says_that_nobody_wrote_it(provider, name):
    assert PROVIDERS[name].send(make_mail()).verdict is Verdict.ACCEPTED
    (received,) = provider.mails
    assert received.headers["Auto-Submitted"] == "auto-generated"
    assert received.reply_to == []


@pytest.mark.parametrize("name", HTTP)
@pytest.mark.parametrize(("given", "address"), REPLY_TO)
def test_an_answer_goes_where_the_shop_wants_it(provider, settings, name, given, address):
    settings.REPLY_TO_EMAIL = given
    assert PROVIDERS[name].send(make_mail()).verdict is Verdict.ACCEPTED
    (received,) = provider.mails
    (answers,) = received.reply_to
    assert answers["email"] == address["email"]
    assert str(make_header(decode_header(answers.get("name", "")))) == address.get("name", "")
    assert received.headers["Auto-Submitted"] == "auto-generated"


def test_smtp_has_no_reply_to_unless_it_is_set(smtp):
    PROVIDERS["smtp"].send(make_mail())
    message = email.message_from_string(smtp.messages[0], policy=email.policy.default)
    assert (message["Auto-Submitted"], message["Reply-To"]) == ("auto-generated", None)


@pytest.mark.parametrize(("given", "address"), REPLY_TO)
def test_smtp_has_both_headers(smtp, settings, given, address):
    settings.REPLY_TO_EMAIL = given
    PROVIDERS["smtp"].send(make_mail())
    message = email.message_from_string(smtp.messages[0], policy=email.policy.default)
    (answers,) = message["Reply-To"].addresses
    assert (answers.addr_spec, answers.display_name) == (address["email"], address.get("name", ""))
    assert message["Auto-Submitted"] == "auto-generated"
