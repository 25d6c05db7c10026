"""Read e-mail addresses: which ones are accepted, and the form in which they are stored and searched.

Every address that enters is read here.
"""

from __future__ import annotations

import re

import idna

from runtime.texts import name_invisible

#: RFC 3696 (erratum 1690) and RFC 5321: no address is longer.
LONGEST = 254
_LONGEST_LOCAL = 64
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_LOCAL = re.compile(rf"{_ATOM}(?:\.{_ATOM})*")
#: A header's encoded word (RFC 2047). Libraries decode it also where RFC 2047 does not allow it.
_ENCODED_WORD = re.compile(r"=\?.*\?=")
_MORE = r"(?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])"
# A letter begins the last label, so that 1.2.3.4 is not a domain. No top-level domain has one character.
_DOMAIN = re.compile(rf"(?:[A-Za-z0-9]{_MORE}?\.)+[A-Za-z]{_MORE}")


class NotAnAddress(ValueError):
    """A text is not an address that every provider accepts. The message says what would be right."""


def read_address(text: str) -> str:
    """Return the address as it is stored. Raise `NotAnAddress`.

    Only a domain with characters outside ASCII changes: it becomes its `xn--` form, in lower case. All else
    keeps its case; compare addresses without regard to case.

    >>> read_address("Ann@EXÄMPLE.com"), read_address("Ann@Example.com")
    ('Ann@xn--exmple-cua.com', 'Ann@Example.com')
    """
    local, at, domain = text.rpartition("@")
    if invisible := name_invisible(local):
        raise NotAnAddress(invisible)
    if not at:
        raise NotAnAddress("There is no @ in it. Use an e-mail address like alice@example.com.")
    if not (local and domain):
        raise NotAnAddress("Use an e-mail address like alice@example.com.")
    if not _LOCAL.fullmatch(local) or _ENCODED_WORD.search(local):
        raise NotAnAddress(
            "Before the @, use only ASCII letters, digits, !#$%&'*+-/=?^_`{|}~ and single dots between them,"
            " but not =?…?=."
        )
    address = f"{local}@{domain if domain.isascii() else _to_ascii(domain)}"
    if len(text) > LONGEST or len(address) > LONGEST or len(local) > _LONGEST_LOCAL:
        raise NotAnAddress(
            f"Use at most {LONGEST} characters, with the domain as xn--…, and {_LONGEST_LOCAL} before the @."
        )
    if not _DOMAIN.fullmatch(address, len(local) + 1):
        raise NotAnAddress("After the @, use a domain like example.com, without brackets or a final dot.")
    return address


def is_usable(text: str) -> bool:
    """Return whether a text is an address that every provider accepts."""
    try:
        read_address(text)
    except NotAnAddress:
        return False
    return True


def as_stored(text: str) -> str:
    """Return an address that somebody searches for as it is stored, and another text as it is.

    Ignore spaces around it.
    """
    text = text.strip()
    try:
        return text if text.isascii() else read_address(text)
    except NotAnAddress:
        return text


def domain_of(text: str) -> str:
    """Return a domain that somebody searches for as it is stored, or "" if the text is none."""
    address = as_stored(f"a@{text}")
    return address.removeprefix("a@") if is_usable(address) else ""


def _to_ascii(domain: str) -> str:
    """Return a domain as `xn--`, by IDNA 2008 after the mapping of UTS 46 (case, width, composition)."""
    try:
        if len(domain) <= LONGEST:
            return idna.encode(domain, uts46=True).decode()
    except idna.IDNAError:
        pass
    raise NotAnAddress(
        name_invisible(domain) or "After the @, use a domain like exämple.com, or its registered form xn--…."
    )
