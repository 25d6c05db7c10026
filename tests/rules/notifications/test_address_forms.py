"""Which texts are addresses, and the form in which they are stored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.addresses import as_stored
from runtime.personal_data import find_addresses, hide_addresses
from tests.kit import addresses
from tests.kit.words import NotAnAddress, address_hash, read_address

LABEL = "x" * 63
#: Given, and stored: only a domain outside ASCII changes.
ACCEPTED = [
    ("Ann.Smith+tea@Example.COM", "Ann.Smith+tea@Example.COM"),
    ("!#$%&'*+-/=?^_`{|}~@example.com", "!#$%&'*+-/=?^_`{|}~@example.com"),
    ("Ann@EXÄMPLE.com", "Ann@xn--exmple-cua.com"),
    ("Ann@exa\u0308mple.com", "Ann@xn--exmple-cua.com"),
    ("ann@ｅｘａｍｐｌｅ.com", "ann@example.com"),
    ("ann@例え。jp", "ann@xn--r8jz45g.jp"),
    ("ann@straße.de", "ann@xn--strae-oqa.de"),
    ("ann@STRAẞE.de", "ann@xn--strae-oqa.de"),
    ("ann@उदाहरण.भारत", "ann@xn--p1b6ci4b4b3a.xn--h2brj9c"),
    ("ann@نامه\u200cای.com", "ann@xn--mgba3gch31f060k.com"),
    ("ann@аpple.com", "ann@xn--pple-43d.com"),
    ("ann@xn--exmple-cua.exämple.com", "ann@xn--exmple-cua.xn--exmple-cua.com"),
    ("ann@xn--i-7iq.ws", "ann@xn--i-7iq.ws"),
    ("ann@a.b1.co2", "ann@a.b1.co2"),
    (f"{'a' * 64}@{LABEL}.com", f"{'a' * 64}@{LABEL}.com"),
    (f"{'a' * 59}@{'.'.join([LABEL] * 3)}.co", f"{'a' * 59}@{'.'.join([LABEL] * 3)}.co"),
]
REFUSED = [
    *("", "ann", "@", "ann@", "@example.com", "ann@@example.com", "ann@example.com,bob@example.com"),
    *(" ann@example.com", "ann@example.com ", "ann@example.com\n", "a nn@example.com", "ann@exam ple.com"),
    *(".ann@example.com", "ann.@example.com", "a..n@example.com", '"ann"@example.com', "<ann@example.com>"),
    *(
        "änn@example.com",
        "a\x00n@example.com",
        "=?utf-8?q?ann?=@example.com",
        "a=?us-ascii?q?b?=@example.com",
        "a(n)n@example.com",
    ),
    *("ann@localhost", "ann@[127.0.0.1]", "ann@[IPv6:::1]", "ann@127.0.0.1", "ann@example.123", "ann@e.c"),
    *("ann@example.com.", "ann@exämple.com.", "ann@.example.com", "ann@example..com", "ann@exä..com"),
    *("ann@-example.com", "ann@example-.com", "ann@example.-com", "ann@example.com-", "ann@ä-.com"),
    *("ann@exam_ple.com", "ann@exä_mple.com", "ann@b＠example.com", "ann@ä℀.com", "ann@i❤.ws"),
    *("ann@a\u200db.com", "ann@exämple.com\u200e", "ann@ab--ä.com", "ann@xn--a.ä.com", "ann@\u0308a.com"),
    *(f"{'a' * 65}@example.com", f"ann@{'x' * 64}.com", f"ann@{'ä' * 60}.com"),
    f"{'a' * 60}@{'.'.join([LABEL] * 3)}.co",
    f"{'a' * 64}@{'.'.join(['ä' * 45] * 4)}.de",
]


@pytest.mark.parametrize(("text", "stored"), ACCEPTED)
def test_an_address_is_stored_with_its_domain_in_ascii(text, stored):
    assert len(stored) <= 254
    assert read_address(text) == read_address(stored) == stored


@pytest.mark.parametrize("text", REFUSED)
def test_what_providers_do_not_take_is_refused_with_what_would_be_right(text):
    with pytest.raises(
        NotAnAddress,
        match=r"^(There is no @ in it\. Use|Use|Before the @, use|After the @, use"
        r"|Contains an invisible character) .*[.]$",
    ):
        read_address(text)


@given(addresses.NEAR_MISSES)
def test_reading_an_address_again_changes_nothing(text):
    try:
        stored = read_address(text)
    except NotAnAddress:
        assert as_stored(text) == text or text != text.strip()
    else:
        assert stored.isascii() and len(stored) <= 254
        assert read_address(stored) == as_stored(text) == as_stored(f" {text}\n") == stored
        assert read_address(stored.upper()).lower() == stored.lower()


@given(st.text() | addresses.NEAR_MISSES)
def test_any_text_is_read_or_refused(text):
    try:
        read_address(text)
    except NotAnAddress as error:
        assert str(error)


@pytest.mark.parametrize(("text", "stored"), ACCEPTED)
def test_one_person_has_one_hash_in_every_spelling(text, stored):
    assert address_hash(text) == address_hash(stored) == address_hash(f" {stored.upper()} ")


@pytest.mark.parametrize("text", [text for text, _ in ACCEPTED if text[0] in "Aa"])
@pytest.mark.parametrize(
    "around", ['{{"email": "{}", "n": 1}}', "to <{}>: no", "'{}'", "{}\u200e", "{}。次の"]
)
def test_a_text_names_the_person_in_every_spelling(text, around):
    quoted = around.format(text)
    assert as_stored(text).lower() in find_addresses(quoted)
    assert as_stored(text).lower() in find_addresses(quoted.replace("@", "\\u0040"))
    assert text not in hide_addresses(quoted, but=lambda address: False)
    assert hide_addresses(quoted, but=read_address(text).lower().__eq__) == quoted


@pytest.mark.parametrize("around", ['{{"email": "{}"}}', "to <{}>: no", "'{}'", "refund:{}"])
def test_a_text_names_the_person_whose_address_begins_with_an_apostrophe(around):
    address = read_address("'ann@example.com")
    quoted = around.format(address)
    assert address in find_addresses(quoted)
    assert hide_addresses(quoted, but=address.__eq__) == quoted


def test_a_megabyte_of_backslashes_or_addresses_takes_linear_time():
    # In quadratic time one of them would take hours.
    assert find_addresses("\\" * 1_000_000 + "x") == set()
    many = "ann@example.com " * 60_000
    assert hide_addresses(many, but=lambda address: False) == "erased@privacy.invalid " * 60_000
