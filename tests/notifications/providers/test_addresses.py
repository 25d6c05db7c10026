"""Addresses split by us are what anymail makes of them, and each provider gets those that we accept."""

from __future__ import annotations

import email
import email.headerregistry
import email.policy
import email.utils

import pytest
from anymail.exceptions import AnymailInvalidAddress
from anymail.utils import parse_address_list
from hypothesis import HealthCheck, settings
from hypothesis import given as drawn
from hypothesis import strategies as st

from notifications.providers import addresses
from notifications.providers.base import formatted_address
from notifications.providers.sending import PROVIDERS
from outbox.addresses import read_address
from outbox.database.ids import new_id
from outbox.delivery.rows.outcomes import Verdict
from tests.factories import make_mail
from tests.notifications.providers.test_outcomes import HTTP
from tests.outbox.addresses import ACCEPTED

NAMES = (
    "",
    "Alice",
    "Alice Smith",
    "O'Neill, Jürgen",
    "Dr. Groß-Müller",
    'The "Boss"',
    "back\\slash",
    "a@b",
    "(odd) name",
    "李小龍",
    "semi;colon: <x>",
    "=?utf-8?q?x?=",
)
ADDRESSES = (
    "alice@example.com",
    "a.b+c_d'e@sub.example.co.uk",
    '"quoted user"@example.com',
    "jürgen@example.com",
    "alice@münchen.example",
    "UPPER@Example.COM",
)
#: Only older Pythons read it: getaddresses() has become stricter, also in security releases of Python 3.11.
LITERAL = "alice@[127.0.0.1]"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("address", ADDRESSES)
def test_reads_what_anymail_reads(name, address):
    text = formatted_address(name=name, recipient_email=address)
    for given in (text, [text]):
        (ours,), (theirs,) = addresses.parse(given, "to"), parse_address_list(given, "to")
        assert (ours.display_name, ours.addr_spec) == (theirs.display_name, theirs.addr_spec)
        assert (ours.username, ours.domain, str(ours)) == (theirs.username, theirs.domain, str(theirs))


@pytest.mark.parametrize("name", NAMES)
def test_reads_or_refuses_a_literal_address_as_anymail_does(name):
    text = formatted_address(name=name, recipient_email=LITERAL)
    results = []
    for parse in (addresses.parse, parse_address_list):
        try:
            results.append([str(one) for one in parse([text], "to")])
        except AnymailInvalidAddress as error:
            results.append(str(error))
    ours, theirs = results
    assert ours == theirs


@pytest.mark.parametrize(
    "wrong", ["alice", "alice@", "@example.com", "a b@example.com", "a..b@example.com", ""]
)
def test_refuses_what_anymail_refuses(wrong):
    with pytest.raises(AnymailInvalidAddress, match="`to`") as theirs:
        parse_address_list([wrong], "to")
    with pytest.raises(AnymailInvalidAddress) as ours:
        addresses.parse([wrong], "to")
    assert str(ours.value) == str(theirs.value)


def test_leaves_several_addresses_to_anymail():
    both = ["a@example.com", "b@example.com"]
    assert [str(one) for one in addresses.parse(both, "to")] == both
    assert [str(one) for one in addresses.parse("a@example.com, b@example.com", "to")] == both
    assert addresses.parse([], "to") == []


#: The server of the fixture is the same for all examples, and each example reads the last of its e-mails.
SHARED = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
TO_NAMES = st.sampled_from(NAMES)


@pytest.mark.django_db
@pytest.mark.parametrize("name", HTTP)
def test_each_provider_gets_every_accepted_address_unchanged(provider, name):
    mail = make_mail()

    @SHARED
    @drawn(ACCEPTED, TO_NAMES)
    def check(address, to_name):
        mail.id, mail.recipient_email, mail.to_name = new_id(), read_address(address), to_name
        outcome = PROVIDERS[name].send(mail)
        assert (outcome.verdict, outcome.text) == (Verdict.ACCEPTED, "")
        assert provider.mails[-1].recipients == (mail.recipient_email,)

    check()


@pytest.mark.django_db
def test_smtp_gets_every_accepted_address_unchanged(smtp):
    mail = make_mail()

    @SHARED
    @drawn(ACCEPTED, TO_NAMES)
    def check(address, to_name):
        mail.id, mail.recipient_email, mail.to_name = new_id(), read_address(address), to_name
        outcome = PROVIDERS["smtp"].send(mail)
        assert (outcome.verdict, outcome.text) == (Verdict.ACCEPTED, "")
        message = email.message_from_string(smtp.messages[-1], policy=email.policy.default)
        (to,) = message["To"].addresses
        assert to.addr_spec == mail.recipient_email

    check()


@drawn(ACCEPTED, TO_NAMES)
def test_pythons_email_package_reads_every_accepted_address_unchanged(text, name):
    address = read_address(text)
    assert email.headerregistry.Address(addr_spec=address).addr_spec == address
    assert email.utils.parseaddr(formatted_address(name=name, recipient_email=address))[1] == address
    (ours,) = addresses.parse(formatted_address(name=name, recipient_email=address), "to")
    assert ours.addr_spec == address
    message = email.message.EmailMessage()
    message["To"] = address
    again = email.message_from_bytes(message.as_bytes(), policy=email.policy.default)
    assert [one.addr_spec for one in again["To"].addresses] == [address]
