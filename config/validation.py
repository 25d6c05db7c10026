"""Validators of settings. Each raises `ValidationError`, and config.settings adds the setting's name.

`parse_options` names its setting itself.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import math
import re
from collections.abc import Callable, Collection, Sequence
from email.utils import parseaddr
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from environs import ValidationError, validate

from runtime.addresses import NotAnAddress, read_address
from runtime.names import Reserved, refuse_reserved

positive = validate.Range(min=0, min_inclusive=False)
at_least_one = validate.Range(min=1)
#: The names of systems that events have as their source.
_NAME_OF_SYSTEM = re.compile(r"[\w.~:/?#@%+=&-]+")
SHORTEST_KEY = 32
not_negative = validate.Range(min=0)


def delays(values: Sequence[float]) -> None:
    if not all(math.isfinite(value) and value > 0 for value in values):
        raise ValidationError("Each delay must be a positive number of seconds.")


def long_keys(values: Sequence[str]) -> None:
    if any(len(value) < SHORTEST_KEY for value in values):
        raise ValidationError(f"Each key must have at least {SHORTEST_KEY} random characters.")


def names_of(allowed: Collection[str]) -> Callable[[Collection[str]], None]:
    """Return a validator that accepts a collection if all members are in `allowed`."""

    def check(names: Collection[str]) -> None:
        for name in sorted(set(names) - set(allowed)):
            by_lower = {each.lower(): each for each in allowed}
            [closest] = difflib.get_close_matches(name.lower(), by_lower, n=1) or [""]
            meant = f" Did you mean {by_lower[closest]}?" if closest else ""
            raise ValidationError(f"{name!r} is none of {', '.join(allowed)}.{meant}")

    return check


def name_of(allowed: Collection[str]) -> Callable[[str], None]:
    """Return a validator that accepts a text in `allowed`."""
    check = names_of(allowed)
    return lambda name: check([name])


def names_of_systems(values: Sequence[str]) -> None:
    """Accept names that fit the column `orders.source`, and that an event can carry: parts of a URI."""
    if wrong := [value for value in values if not 0 < len(value) <= 100]:
        raise ValidationError(f"A name has 1 to 100 characters, not {len(wrong[0])}.")
    try:
        refuse_reserved(values)
    except Reserved as error:
        raise ValidationError(str(error)) from error
    for value in values:
        if not _NAME_OF_SYSTEM.fullmatch(value):
            right = "-".join(re.findall(r"\w+", value.lower())) or "my-shop"
            raise ValidationError(
                f"{value!r} is no name of a system. Use letters, digits and . _ ~ : / - without spaces,"
                f" such as {right}."
            )


def email_address(value: str) -> None:
    """Accept an address with or without a name: `orders@example.com`, `Shop <orders@example.com>`.

    The address is used as it is, and must have the form in which addresses are stored.
    """
    typed = parseaddr(value)[1]
    try:
        address = read_address(typed)
    except NotAnAddress as error:
        raise ValidationError(
            f"This is not an e-mail address, such as 'Shop <orders@example.com>'. {error}"
        ) from error
    if address != typed:
        raise ValidationError(f"Write the address as {address}.")


def email_address_or_empty(value: str) -> None:
    if value:
        email_address(value)


def appendable(value: str) -> None:
    """Accept an empty string or the path of a writable file. Create the file."""
    try:
        if value:
            Path(value).open("a").close()
    except OSError as error:
        raise ValidationError(f"{value} cannot be written to: {error.strerror}.") from None


def web_address(value: str) -> None:
    """Accept an http or https URL, or an empty string."""
    parts = urlsplit(value)
    if value and not (parts.scheme in ("http", "https") and parts.hostname):
        raise ValidationError("This is not a web address, such as https://shop.example.com.")


def issuer(value: str) -> None:
    """Accept the address of an OpenID provider, or an empty string. Only this machine's may be http."""
    parts = urlsplit(value)
    is_safe = parts.scheme == "https" or parts.hostname in ("localhost", "127.0.0.1", "::1")
    web_address(value)
    if value and (not is_safe or parts.query or parts.fragment or len(value) > 200):
        raise ValidationError("This is not an issuer, such as https://login.example.com/realms/shop.")


def parse_group_map(name: str, text: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return a group of ours and the shops of its members, sorted, by the provider's group.

    >>> parse_group_map("OIDC_GROUP_MAP", "shop-support=support@tea+coffee, shop-ops=operator@*, w=editor")
    {'shop-support': ('support', ('coffee', 'tea')), 'shop-ops': ('operator', ('*',)), 'w': ('editor', ())}
    """
    groups: dict[str, tuple[str, tuple[str, ...]]] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        theirs, _, right = (part.strip() for part in entry.rpartition("="))
        ours, at, shops = (part.strip() for part in right.partition("@"))
        words = tuple(sorted({shop.strip() for shop in shops.split("+")})) if at else ()
        if not (theirs and ours and all(words)) or theirs in groups or ("*" in words and len(words) > 1):
            raise ValidationError(
                f"{name}: {entry!r} is not a group of the provider, once, with a group of orderpost and its"
                " shops, such as shop-support=support@tea-shop+coffee-shop or shop-ops=operator@*."
            )
        groups[theirs] = (ours, words)
    return groups


def networks(values: Sequence[str]) -> None:
    for value in values:
        try:
            ipaddress.ip_network(value)
        except ValueError as error:
            raise ValidationError(f"{error}. List addresses and networks, such as 10.0.0.0/8.") from error


def parse_options(name: str, text: str) -> dict[str, Any]:
    """Return a JSON object of names with texts, numbers and booleans. An empty text has none.

    Raise `ValueError` without the text, which may have a password.
    """
    try:
        options = json.loads(text or "{}")
    except ValueError:
        options = None
    if not isinstance(options, dict) or any(
        not isinstance(value, str | int | float) for value in options.values()
    ):
        raise ValueError(
            f"{name} must be a JSON object of texts, numbers and booleans, such as"
            ' {"security.protocol": "SSL"}.'
        )
    return options
