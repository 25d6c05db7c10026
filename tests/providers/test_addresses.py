"""Each provider gets every address that we accept, with its name, unchanged."""

from __future__ import annotations

import email
import email.headerregistry
import email.policy
import email.utils

import pytest
from anymail.utils import parse_address_list
from hypothesis import HealthCheck, settings
from hypothesis import given as drawn
from hypothesis import strategies as st

from notifications.providers.http import split_addresses
from tests.kit.addresses import ACCEPTED
from tests.kit.mails import make_mail
from tests.kit.providers import HTTP
from tests.kit.words import PROVIDERS, Verdict, formatted_address, new_id, read_address

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


#: The server of the fixture is the same for all examples, and each example reads the last of its e-mails.
SHARED = settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    message = email.message.EmailMessage()
    message["To"] = address
    again = email.message_from_bytes(message.as_bytes(), policy=email.policy.default)
    assert [address.addr_spec for address in again["To"].addresses] == [address]


@drawn(ACCEPTED, TO_NAMES)
def test_an_address_and_its_name_are_split_as_anymail_would(text, name):
    name = name.replace("=?", "")  # which we break
    header = formatted_address(name=name, recipient_email=read_address(text))
    for headers in (header, [header]):
        (ours,), (theirs,) = split_addresses(headers), parse_address_list(headers, "to")
        assert (ours.username, ours.domain, str(ours)) == (theirs.username, theirs.domain, str(theirs))
        assert (ours.display_name, ours.addr_spec) == (theirs.display_name, theirs.addr_spec)


def test_several_addresses_and_none_are_split():
    both = ["a@example.com", "b@example.com"]
    assert [str(address) for address in split_addresses(both)] == both and split_addresses([]) == []
