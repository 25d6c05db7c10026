"""Read an order's parcels: its fulfilments that left the shop.

Those of refunds, returns and replacements are none. Saleor moves lines of a parcel into them, and deletes a
fulfilment without lines, so then a parcel's lines are not known.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from rest_framework.exceptions import ValidationError

from shop_connections.saleor.values import Json, member, members, text, time, whole
from shop_connections.shop_order import ShopParcel
from web.api.fields import WebAddress

_LONGEST, _LONGEST_URL, _MOST_PARCELS = 100, 500, 100
_MOVED = frozenset({"REFUNDED", "RETURNED", "REFUNDED_AND_RETURNED", "REPLACED"})
#: The parcels of one request are created so close to each other.
_TOGETHER = dt.timedelta(seconds=1)
_LINK = WebAddress()


def read_parcels(event: Json, order: Json, *, places: Mapping[str, int]) -> tuple[ShopParcel, ...]:
    """Return the parcels. `places` has the place of each line by its id.

    The event of a parcel says whether the customer is to hear of it, and of the others of its request: Saleor
    makes one for each warehouse. A cancelled one came back.
    """
    fulfillments = members(order, "fulfillments")
    keeps_lines = not any(text(each.get("status")) in _MOVED for each in fulfillments)
    id_of_event = member(event, "fulfillment").get("id")
    own = next((each for each in fulfillments if each.get("id") == id_of_event), {})
    parcels = []
    for each in fulfillments:
        id, status = text(each.get("id")), each.get("status")
        if not id or status not in ("FULFILLED", "CANCELED"):
            continue
        number, url = _tracking(each.get("trackingNumber"))
        parcels.append(
            ShopParcel(
                id,
                number,
                "",
                url,
                time(each.get("created")),
                is_delivered=False,
                is_returned=status == "CANCELED",
                lines=_lines(each, places) if keeps_lines else (),
                notify=False if status == "CANCELED" else _wish(event, each, own),
            )
        )
    return tuple(parcels[:_MOST_PARCELS])


def last_fulfilment_at(order: Json) -> dt.datetime | None:
    created = (time(each.get("created")) for each in members(order, "fulfillments"))
    return max(filter(None, created), default=None)


def _wish(event: Json, fulfillment: Json, own: Json) -> bool | None:
    """Return what an event says of a fulfilment. `own` is the one that it is about."""
    wish = event.get("notifyCustomer")
    if not isinstance(wish, bool):
        return None
    if fulfillment is own:
        return wish
    times = [time(each.get("created")) for each in (fulfillment, own)]
    if event.get("__typename") != "FulfillmentCreated" or times[0] is None or times[1] is None:
        return None
    return wish if abs(times[0] - times[1]) < _TOGETHER else None


def _tracking(value: object) -> tuple[str, str]:
    """Return a parcel's number and link. Saleor has one field for either."""
    written = text(value)
    if not written.lower().startswith(("https://", "http://")):
        return written[:_LONGEST] if "@" not in written else "", ""  # as orders.bodies wants it
    try:
        link = _LINK.run_validation(written)
    except ValidationError:
        return "", ""
    return "", link if len(link) <= _LONGEST_URL else ""


def _lines(fulfillment: Json, places: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    """Return the lines, or none if one of them is of no item."""
    lines: dict[int, int] = {}
    for line in members(fulfillment, "lines"):
        place, quantity = places.get(text(member(line, "orderLine").get("id"))), whole(line.get("quantity"))
        if place is None or quantity < 1:
            return ()
        lines[place] = lines.get(place, 0) + quantity
    return tuple(sorted(lines.items()))
