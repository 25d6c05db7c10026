"""Read the values of Saleor's JSON."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any

from notifications.content.rendering import minor_digits
from orders.fields import MAX_AMOUNT
from runtime.texts import one_line

Json = Mapping[str, Any]


def text(value: object) -> str:
    return one_line(value) if isinstance(value, str) else ""


def cut(text: str, most: int | None) -> str:
    return text if most is None or len(text) <= most else f"{text[: most - 1].rstrip()}…"


def member(document: Json, key: str) -> Json:
    """Return an object, empty if there is none."""
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def members(document: Json, key: str) -> Sequence[Json]:
    """Return the objects of a list."""
    value = document.get(key)
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def whole(value: object) -> int:
    return value if type(value) is int else 0


def decimal(value: object) -> Decimal | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return None
    return number if number.is_finite() and abs(number) < 10**16 else None


def minor(money: Json, currency: str) -> int | None:
    """Return an amount in minor units, or None if it is none."""
    number = decimal(money.get("amount"))
    if number is None or not currency:
        return None
    units = int(number.scaleb(minor_digits(currency)).quantize(Decimal(1), ROUND_HALF_UP))
    return max(-MAX_AMOUNT, min(units, MAX_AMOUNT))


def time(value: object) -> dt.datetime | None:
    """Return the time of a text with its zone, or None if it is none."""
    try:
        at = dt.datetime.fromisoformat(value) if isinstance(value, str) else None
        return at.astimezone(dt.UTC) if at is not None and at.tzinfo else None
    except (ValueError, OverflowError):
        return None
