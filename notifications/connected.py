"""The shops that connect themselves. Each counts as one of ORDER_SOURCES, without a restart.

The app that has them sets `find_shop`, `has_name` and `read_names`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Protocol

from django.conf import settings

from notifications.new_emails import Withheld


class ConnectedShop(Protocol):
    """A shop that connected itself and is not turned off."""

    def withheld(self, at: dt.datetime) -> Withheld | None:
        """Return the state of the e-mail about a change at this time by the shop's clock, if none is sent."""


def _no_shop(source: str) -> None:
    return None


def _no_name(source: str) -> bool:
    return False


#: Returns the connected shop with this name, or None. It may take one statement.
find_shop: Callable[[str], ConnectedShop | None] = _no_shop
#: Whether a connected shop has this name. Takes no statement, and learns of a change within ten seconds.
has_name: Callable[[str], bool] = _no_name
#: Returns the names of the connected shops. It may take one statement.
read_names: Callable[[], Iterable[str]] = tuple


def order_sources() -> list[str]:
    """Return the names of ORDER_SOURCES and of the connected shops."""
    return list(dict.fromkeys([*settings.ORDER_SOURCES, *read_names()]))
