"""The shops that connect themselves. Each counts as one of ORDER_SOURCES, without a restart.

The app that has them registers how to find them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from django.conf import settings

from notifications.states.transitions import Withheld


class ConnectedShop(Protocol):
    """A shop that connected itself and is not turned off."""

    def has_host(self, url: str) -> bool:
        """Return whether a link leads to the shop."""

    def withheld(self, at: dt.datetime) -> Withheld | None:
        """Return the state of the e-mail about a change at this time by the shop's clock, if none is sent."""


class ConnectedShops(NamedTuple):
    """The ways to find connected shops."""

    #: Returns the shop with this name, or None. It may take one statement.
    find: Callable[[str], ConnectedShop | None]
    #: Whether a shop has this name. Takes no statement, and learns of a change within ten seconds.
    has_name: Callable[[str], bool]
    #: Returns the names. It may take one statement.
    read_names: Callable[[], Iterable[str]]


_shops: list[ConnectedShops] = []


def register_shops(shops: ConnectedShops) -> None:
    _shops[:] = [shops]


def find_shop(source: str) -> ConnectedShop | None:
    """Return the connected shop with this name, or None. It may take one statement."""
    return _shops[0].find(source)


def has_name(source: str) -> bool:
    """Return whether a connected shop has this name, without a statement."""
    return _shops[0].has_name(source)


def order_sources() -> list[str]:
    """Return the names of ORDER_SOURCES and of the connected shops."""
    return list(dict.fromkeys([*settings.ORDER_SOURCES, *_shops[0].read_names()]))
