"""Read the values of WooCommerce's JSON, which plug-ins write in various ways."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from html import unescape
from typing import Any

from django.utils.html import strip_tags

from notifications.content.rendering import minor_digits
from runtime.texts import one_line

#: How WordPress and MySQL write that there is no date, also in a zone.
_NO_DATE = re.compile(r"(0000|-0001)-|1970-01-01T")
#: An amount between signs and letters.
_AMOUNT = re.compile(r"\D*(\d[\d.,]*)\D*")


def text(value: object) -> str:
    return one_line(value) if isinstance(value, str) else ""


def html_text(value: object) -> str:
    """Return a text without tags and entities, which WordPress stores in the titles of most authors."""
    return text(unescape(strip_tags(value[:20_000]))) if isinstance(value, str) else ""


def cut(text: str, most: int | None) -> str:
    return text if most is None or len(text) <= most else f"{text[: most - 1].rstrip()}…"


def whole(value: object) -> int | None:
    """Return a whole number, also one that a plug-in wrote as text or as 7.0."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        return int(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
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


def odd_amount(value: object) -> Decimal | None:
    """Return the amount without its sign in a text that is no number.

    >>> odd_amount("--10.00"), odd_amount("-€1.234,5"), odd_amount("1,234"), odd_amount("NaN")
    (Decimal('10.00'), Decimal('1234.5'), Decimal('1234'), None)
    """
    match = _AMOUNT.fullmatch(value) if isinstance(value, str) and len(value) <= 40 else None
    if match is None:
        return None
    number = match[1].rstrip(".,")
    place = max(number.rfind("."), number.rfind(","))
    begin, end = (number[:place], number[place + 1 :]) if place > 0 else (number, "")
    marks = set(begin) & {".", ","}
    are_thousands = len(end) == 3 and marks <= {number[place]}
    digits = begin.replace(".", "").replace(",", "")
    return decimal(f"{digits}{end}" if are_thousands else f"{digits}.{end}")


def minor(value: object, currency: str) -> int | None:
    """Return an amount in minor units. The shop may write fewer or more decimals than the currency has."""
    number = decimal(value)
    return None if number is None else scaled(number, currency)


def scaled(number: Decimal, currency: str) -> int:
    return int(number.scaleb(minor_digits(currency)).quantize(Decimal(1), ROUND_HALF_UP))


def members(document: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
    """Return the objects of a list."""
    return [entry for entry in listed(document.get(key)) or () if isinstance(entry, dict)]


def listed(value: object) -> Sequence[Any] | None:
    """Return a list, or None. PHP makes an object of a list that lost a member."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else None


def time(value: object) -> dt.datetime | None:
    """Return the time of a text, in UTC if it has no zone. Raise `ValueError` if it is not a time."""
    if value is None or value == "":
        return None
    if not isinstance(value, str) or _NO_DATE.match(value):
        raise ValueError
    try:
        time = dt.datetime.fromisoformat(value.strip())
        return time.astimezone(dt.UTC) if time.tzinfo else time.replace(tzinfo=dt.UTC)
    except OverflowError:
        raise ValueError from None
