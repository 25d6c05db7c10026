"""Read an order's parcels from the meta of the usual tracking plug-ins, because WooCommerce has none itself.

| plug-in | meta |
| --- | --- |
| Shipment Tracking, Advanced Shipment Tracking (AST), and those that write as they do | `_wc_shipment_tracking_items`; AST's deliveries: `ts_shipment_status`, `shipment_status` |
| AfterShip | `_aftership_tracking_items` |
| YITH Order & Shipment Tracking | `ywot_tracking_code` and others |
| Orders Tracking (VillaTheme) | `_vi_wot_order_item_tracking_data` of each line |
"""  # noqa: E501

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from typing import Any
from urllib.parse import quote

from rest_framework.exceptions import ValidationError

from runtime.texts import one_line
from shop_connections.shop_order import ShopParcel
from shop_connections.woocommerce.php import NotSerialized, unserialize
from shop_connections.woocommerce.values import html_text
from web.api.fields import WebAddress

_LONGEST, _LONGEST_URL = 100, 500
_MOST_PARCELS = 100
_MOST = 300  # members of a list; an order may have 200 items
#: 2001, from which on a number is a time in seconds.
_EARLIEST = 10**9
_LINK = WebAddress()
#: How plug-ins write the number in a link, and what is left of such a place in a link of no use.
_NUMBER_HERE = ("%number%", "{tracking_number}", "%1$s")
_PLACEHOLDER = re.compile(r"%(?:\d+\$)?s|%[a-z_]+%|[{}\[\]]|#[A-Z_]{3,}#")
#: One field may have the numbers of several parcels.
_BETWEEN_NUMBERS = re.compile(r"[,;\r\n]+")
#: The words of Advanced Shipment Tracking for a parcel that came back.
_RETURNED = frozenset({"return_to_sender", "returned"})
#: The words of carriers' names that are written in capitals.
_CAPITALS = frozenset({"dhl", "dpd", "ems", "gls", "sf", "tnt", "ups", "usps"})
_SLUG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")


def read_parcels(order: Mapping[str, Any], *, items: Sequence[frozenset[int]]) -> tuple[ShopParcel, ...]:
    """Return each parcel once. `items` has the ids of each of the order's items."""
    parcels: dict[str, ShopParcel] = {}
    for parcel in (
        *_shipment_tracking(order, items),
        *_aftership(order, items),
        *_yith(read_meta(order)),
        *_orders_tracking(order),
    ):
        if parcel.tracking_number and "@" not in parcel.tracking_number:  # as orders.bodies wants it
            parcels.setdefault(parcel.tracking_number, parcel)
    return tuple(parcels.values())[:_MOST_PARCELS]


def _shipment_tracking(order: Mapping[str, Any], items: Sequence[frozenset[int]]) -> Iterator[ShopParcel]:
    statuses = _members(order, "ts_shipment_status") or _members(order, "shipment_status")
    for place, entry in _members(order, "_wc_shipment_tracking_items").items():
        if isinstance(entry, dict):
            status = statuses.get(place)
            word = status.get("status") if isinstance(status, dict) else None
            yield from _parcels(
                id=entry.get("tracking_id"),
                number=entry.get("tracking_number"),
                carrier=entry.get("custom_tracking_provider")
                or entry.get("formatted_tracking_provider")
                or entry.get("tracking_provider"),
                url=entry.get("custom_tracking_link")
                or entry.get("ast_tracking_link")
                or entry.get("formatted_tracking_link"),
                shipped=entry.get("date_shipped"),
                is_delivered=word == "delivered",
                is_returned=isinstance(word, str) and word in _RETURNED,
                lines=_lines(entry.get("products_list"), items, id="product", quantity="qty"),
            )


def _aftership(order: Mapping[str, Any], items: Sequence[frozenset[int]]) -> Iterator[ShopParcel]:
    for entry in _members(order, "_aftership_tracking_items").values():
        if isinstance(entry, dict):
            metrics = entry.get("metrics")
            yield from _parcels(
                id=entry.get("tracking_id"),
                number=entry.get("tracking_number"),
                carrier=entry.get("slug"),
                shipped=metrics.get("created_at") if isinstance(metrics, dict) else None,
                lines=_lines(entry.get("line_items"), items, id="id", quantity="quantity"),
            )


def _yith(meta: Mapping[str, Any]) -> Iterator[ShopParcel]:
    """Yield the parcel, once its box "picked up" is ticked."""
    if meta.get("ywot_picked_up") in ("on", "yes", "1", 1, True):
        yield from _parcels(
            id="ywot",
            number=meta.get("ywot_tracking_code"),
            carrier=meta.get("ywot_carrier_name") or meta.get("ywot_carrier_id"),
            url=meta.get("ywot_carrier_url"),
            shipped=meta.get("ywot_pick_up_date"),
        )


def _orders_tracking(order: Mapping[str, Any]) -> Iterator[ShopParcel]:
    lines = order.get("line_items")
    for line in lines if isinstance(lines, list) else ():
        if isinstance(line, dict):
            for entry in _members(line, "_vi_wot_order_item_tracking_data").values():
                if isinstance(entry, dict):
                    yield from _parcels(
                        id=None,
                        number=entry.get("tracking_number"),
                        carrier=entry.get("carrier_name") or entry.get("carrier_slug"),
                        url=entry.get("carrier_url"),
                        shipped=entry.get("time"),
                    )


def _parcels(
    *,
    id: object,
    number: object,
    carrier: object,
    url: object = None,
    shipped: object = None,
    is_delivered: bool = False,
    is_returned: bool = False,
    lines: tuple[tuple[int, int], ...] = (),
) -> Iterator[ShopParcel]:
    """Yield the parcel of an entry, or one for each of its numbers. Without an id, a number is the id."""
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    numbers = _BETWEEN_NUMBERS.split(str(number)) if isinstance(number, str | int) else []
    for place, written in enumerate(filter(None, map(_text, numbers))):
        name = _text(id) or written
        yield ShopParcel(
            name if place == 0 or name == written else f"{name} {place}",
            written,
            _carrier(carrier),
            _url(url, written),
            _time(shipped),
            is_delivered,
            is_returned,
            lines if len(numbers) == 1 else (),
        )


def _lines(
    listed: object, items: Sequence[frozenset[int]], *, id: str, quantity: str
) -> tuple[tuple[int, int], ...]:
    """Return the lines, or none if one of them is of no item or of several."""
    lines: dict[int, int] = {}
    for entry in _list(listed).values():
        try:
            wanted, count = int(entry[id]), int(entry[quantity])
        except (LookupError, TypeError, ValueError, OverflowError):
            return ()
        hits = [index for index, ids in enumerate(items) if wanted in ids]
        if len(hits) != 1 or count < 1:
            return ()
        lines[hits[0]] = lines.get(hits[0], 0) + count
    return tuple(sorted(lines.items()))


def _entries(holder: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    entries = holder.get("meta_data")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("key"), str):
            yield entry["key"], entry.get("value")


def read_meta(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by key. A later entry of a key wins, as WooCommerce shows it."""
    return dict(_entries(holder))


def _members(holder: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the members by place of all lists with a key, since a plug-in may write one for each parcel."""
    lists = [_list(value) for name, value in _entries(holder) if name == key]
    if len(lists) == 1:
        return lists[0]
    return {f"{number} {place}": entry for number, list in enumerate(lists) for place, entry in list.items()}


def _list(value: object) -> dict[str, Any]:
    """Return a list's members by place. PHP makes an object of a list that lost a member.

    Some plug-ins write either as JSON or serialized in a text. Leave out what exceeds `_MOST`.
    """
    if isinstance(value, str) and value.startswith(("[", "{", "a:")):
        try:
            value = unserialize(value) if value.startswith("a:") else json.loads(value)
        except (NotSerialized, ValueError, RecursionError):
            return {}
    if isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {}
    return {str(place): entry for place, entry in itertools.islice(value.items(), _MOST)}


def _text(value: object) -> str:
    return one_line(html_text(value)[:_LONGEST]) if isinstance(value, str) else ""


def _carrier(value: object) -> str:
    """Return a carrier's name, also of its code.

    >>> _carrier("deutsche-post-dhl"), _carrier("Royal Mail")
    ('Deutsche Post DHL', 'Royal Mail')
    """
    name = _text(value)
    if not _SLUG.fullmatch(name):
        return name
    return " ".join(word.upper() if word in _CAPITALS else word.capitalize() for word in name.split("-"))


def _url(value: object, number: str) -> str:
    """Return a link with its number, or none if a place for something else is left in it."""
    if not isinstance(value, str):
        return ""
    value = unescape(value)
    for placeholder in _NUMBER_HERE:
        value = value.replace(placeholder, quote(number, safe=""))
    if _PLACEHOLDER.search(value):
        return ""
    try:  # by the check of events, or the parcel would differ from the stored one in each post
        link = _LINK.run_validation(value.strip())
    except ValidationError:
        return ""
    return link if len(link) <= _LONGEST_URL else ""


def _time(value: object) -> dt.datetime | None:
    """Return the time of a number of seconds or of an ISO date, or None if it is neither."""
    try:
        if isinstance(value, int | float) or (isinstance(value, str) and value.isdecimal()):
            seconds = float(value)
            return dt.datetime.fromtimestamp(seconds, dt.UTC) if seconds >= _EARLIEST else None
        time = dt.datetime.fromisoformat(value)  # type: ignore[arg-type]
        return time.astimezone(dt.UTC) if time.tzinfo else time.replace(tzinfo=dt.UTC)
    except (ValueError, TypeError, OverflowError, OSError):
        return None
