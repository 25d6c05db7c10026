"""An order as a shop has it, in our words, the same for all platforms.

A platform takes what it can read of a body. None is what the body lacks or what cannot be read, and leaves
what is stored; only a list that was read removes entries from it. Amounts are in minor units, and texts fit
the columns of `orders`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from typing import Any, NamedTuple

from orders.breakdown import Charge, Item

#: The e-mails that a customer gets about the order that they placed, but not about each vendor's part of it.
OF_PARENT = frozenset(f"order.{name}" for name in ("placed", "paid", "confirmed", "completed", "cancelled"))
#: So far ahead of a post's arrival its order may have been saved: clocks differ.
CLOCKS_APART = dt.timedelta(minutes=2)


class ReadOrder(NamedTuple):
    """An order of a shop's API. The body is empty if it has more bytes than a post may have."""

    body: bytes
    #: Where a later reading goes on, to have this order and those after it. JSON.
    place: Any


class ShopRefund(NamedTuple):
    id: str
    amount: int


class ShopParcel(NamedTuple):
    """A parcel. It has the id of its entry in the shop, because a number may be corrected."""

    id: str
    tracking_number: str
    carrier: str
    tracking_url: str
    shipped_at: dt.datetime | None
    is_delivered: bool
    is_returned: bool
    lines: tuple[tuple[int, int], ...]  # (index of an item, quantity); empty if the shop does not say
    #: Whether the shop wants the customer to hear of it. None if another post may still say so.
    notify: bool | None = True


class ShopHead(NamedTuple):
    """Which order a body is about. Without its id there is none."""

    id: str
    key: str = ""  # differs for another order with the same id, of a shop that was set up again
    address: str = ""  # of the shop, by the order's own link
    #: By the shop's clock. None for a post that must not be left out for a newer one of the same order,
    #: because it says more than the order as it is now.
    modified_at: dt.datetime | None = None
    #: The body does not tell the order, which must be read from the shop's API.
    must_be_read: bool = False
    channel: str = ""  # of the shop's sales channels, if it has any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShopOrder:
    """The order in a body. Only its id was needed to read it."""

    id: str
    #: Ours; "" leaves the order's. None for a word of which only the connection knows the meaning.
    status: str | None
    shop_status: str  # the shop's own word
    #: The customer is still at the checkout, or may have left it, so that nobody hears of a cancellation.
    is_at_checkout: bool = False
    may_be_abandoned: bool = False
    number: str | None = None
    currency: str | None = None
    total: int | None = None
    created_at: dt.datetime | None = None
    modified_at: dt.datetime | None = None  # of the last save, always by the shop's clock
    #: When the shop's API told it, by the shop's clock, if that says nothing of how new a save is.
    read_at: dt.datetime | None = None
    saved_at: dt.datetime | None = None  # the same by our clock
    paid_at: dt.datetime | None = None
    completed_at: dt.datetime | None = None
    user_id: str | None = None
    email: str = ""  # "" also if no provider would take it
    name: str | None = None
    locale: str = ""
    items: tuple[Item, ...] | None = None  # all of them; an order stores fewer
    charges: tuple[Charge, ...] | None = None
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # those that were read
    refunds: tuple[ShopRefund, ...] | None = None  # oldest first
    has_all_refunds: bool = True  # or else some could not be read
    parcels: tuple[ShopParcel, ...] = ()
    #: A parcel with another id is another parcel, and not one that was entered again.
    parcels_keep_ids: bool = False
    parent: str = ""  # the id of the order that it is a part of, or was split from
    is_import: bool = False
    silent: frozenset[str] = frozenset()  # the e-mails that nobody gets about this order
    doubts: tuple[str, ...] = ()  # lines for the timeline, without personal data

    @property
    def as_of(self) -> dt.datetime | None:
        """The time, by the shop's clock, of which this is its state: a later one replaces it."""
        return self.read_at or self.modified_at

    def on_our_clock(self, offset: dt.timedelta = dt.timedelta(), *, received_at: dt.datetime) -> ShopOrder:
        """Return the order with its times by our clock, of which none is later than the post's arrival.

        A save that still lies ahead of it is not known to be the newest, and has no time.
        """
        doubts = list(self.doubts)
        if (
            self.modified_at is not None
            and (ahead := self.modified_at + offset - received_at) <= CLOCKS_APART
        ):
            offset -= max(ahead, dt.timedelta())  # the same for all times, which stay as far apart

        def correct(name: str) -> dt.datetime | None:
            time: dt.datetime | None = getattr(self, name)
            if time is None:
                return None
            if not is_before(time, received_at, offset):
                doubts.append(f"{name}: It is in the future. The time of the post is used.")
                return received_at
            return min(time + offset, received_at)

        def correct_parcel(parcel: ShopParcel) -> ShopParcel:
            if (left_at := parcel.shipped_at) is None:
                return parcel
            is_day = left_at.time() == dt.time()  # of the shop, which no clock changes
            return parcel._replace(shipped_at=min(left_at if is_day else left_at + offset, received_at))

        parcels = tuple(map(correct_parcel, self.parcels))
        before, saved_at = len(doubts), correct("modified_at")
        modified_at = self.modified_at if len(doubts) == before else None
        times: dict[str, Any] = {name: correct(name) for name in ("created_at", "paid_at", "completed_at")}
        return dataclasses.replace(
            self, **times, modified_at=modified_at, saved_at=saved_at, parcels=parcels, doubts=tuple(doubts)
        )


def is_before(time: dt.datetime, received_at: dt.datetime, offset: dt.timedelta) -> bool:
    """Return whether a time by the shop's clock can be that of a change in a post that came then."""
    return (time - received_at) + offset <= CLOCKS_APART


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WholeOrder(ShopOrder):
    """An order with what is stored in place of what was not read."""

    number: str
    currency: str
    total: int
    created_at: dt.datetime
    name: str
    items: tuple[Item, ...]
    charges: tuple[Charge, ...]
    refunds: tuple[ShopRefund, ...]
