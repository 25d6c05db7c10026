"""What platforms give: the translation of a post, and the orders of a shop's API."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

#: One post makes at most so many changes. Beyond, the newest state is stored as one change.
MOST_CHANGES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredShipment:
    carrier: str
    tracking_url: str
    is_delivered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """An order as it is here, under its lock. Amounts are in minor units."""

    status: str
    version: int  # the sequence of its newest event
    total_amount: int
    refunded_amount: int
    currency: str
    is_paid: bool
    is_completed: bool
    #: The shop's time of the newest save that was read here; None if none was.
    modified_at: dt.datetime | None
    email: str
    name: str
    reference: str
    items: Sequence[Mapping[str, Any]]
    charges: Sequence[Mapping[str, Any]]
    details: Mapping[str, Any]
    shipments: Mapping[str, StoredShipment]  # by reference


@dataclass(frozen=True, slots=True)
class Translation:
    """The platform's id of an order, and the envelopes of its events in their order.

    An event's `timestamp` is when the shop made the change, and `modified_at` when it last saved the order.
    """

    order_id: str
    events: Sequence[Mapping[str, Any]]
    modified_at: dt.datetime
    reference: str = ""  # the order's number as the shop shows it
    #: What was odd, for the order's timeline. They must not quote personal data.
    doubts: Sequence[str] = ()

    @property
    def placed_at(self) -> dt.datetime | None:
        """When the customer placed the order, or None without an event."""
        return dt.datetime.fromisoformat(self.events[0]["data"]["placedAt"]) if self.events else None


class ReadOrder(NamedTuple):
    """An order of a shop's API. The body is empty if it has more bytes than a post may have."""

    body: bytes
    #: Where a later reading goes on, to have this order and those after it. JSON.
    place: Any


class ShopUnreachable(Exception):
    """The shop's orders cannot be read. The text says why, and has no key in it."""


class OutOfTime(ShopUnreachable):
    """The time that the caller gave is over. `place` is where a later reading goes on."""

    def __init__(self, text: str, *, place: Any = None) -> None:
        super().__init__(text)
        self.place = place
