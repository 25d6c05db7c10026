"""The currencies of platforms' orders. A plug-in may have added one that no bank knows."""

from __future__ import annotations

import re
from decimal import Decimal

from babel.numbers import is_currency

from events.consuming.envelope import Rejected
from notifications.content.rendering import minor_digits

_CODE = re.compile(r"[A-Za-z]{3}")


class UnknownCurrency(Rejected):
    """An order's currency has no e-mails, since nobody knows what its amounts are."""

    def __init__(self, reason: str, *, currency: str) -> None:
        super().__init__(reason)
        self.currency = currency


def read_currency(value: object, *, total: Decimal | None) -> str:
    """Return a currency in capitals. Raise `UnknownCurrency` if an order's total in it cannot be kept.

    A total of a currency of ISO 4217 is rounded to the decimals that the currency has. Of any other, nobody
    knows what its decimals are worth.

    >>> read_currency("eur", total=Decimal("49.905"))
    'EUR'
    """
    if not isinstance(value, str) or not _CODE.fullmatch(value):
        raise UnknownCurrency("its currency is not three letters", currency=str(value)[:20])
    currency = value.upper()
    kept = minor_digits(currency)
    if total is not None and not is_currency(currency) and total != round(total, kept):
        raise UnknownCurrency(
            f"its total has more than {kept} decimals, and its currency {currency} is not one of ISO 4217",
            currency=currency,
        )
    return currency
