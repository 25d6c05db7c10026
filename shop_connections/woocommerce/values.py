"""Read the values of WooCommerce's JSON, which plug-ins write in various ways."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from html import unescape
from typing import Any

from notifications.content.rendering import minor_digits
from runtime.texts import one_line


def text(value: object) -> str:
    return one_line(value) if isinstance(value, str) else ""


def html_text(value: object) -> str:
    return text(unescape(value)) if isinstance(value, str) else ""


def cut(text: str, most: int | None) -> str:
    return text if most is None or len(text) <= most else f"{text[: most - 1].rstrip()}…"


def whole(value: object) -> int | None:
    """Return a whole number, also one that a plug-in wrote as text."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        return int(value)
    return value if type(value) is int else None


def decimal(value: object) -> Decimal | None:
    if not isinstance(value, str | int | float) or isinstance(value, bool) or len(str(value)) > 40:
        return None
    try:
        number = Decimal(str(value).strip())
    except InvalidOperation:
        return None
    return number if number.is_finite() and abs(number) < 10**16 else None


def minor(value: object, currency: str) -> int | None:
    """Return an amount in minor units. The shop may write fewer or more decimals than the currency has."""
    number = decimal(value)
    return None if number is None else scaled(number, currency)


def scaled(number: Decimal, currency: str) -> int:
    return int(number.scaleb(minor_digits(currency)).quantize(Decimal(1), ROUND_HALF_UP))


def members(document: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    """Return the objects of a list."""
    listed = document.get(key)
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
