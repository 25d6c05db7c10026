"""Addresses split by us are what anymail makes of them."""

from __future__ import annotations

import pytest
from anymail.exceptions import AnymailInvalidAddress
from anymail.utils import parse_address_list

from notifications.providers import addresses
from notifications.providers.base import formatted_address

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
