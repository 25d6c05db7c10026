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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from rest_framework.exceptions import ValidationError

from runtime.texts import one_line
from web.api.fields import WebAddress

_LONGEST, _LONGEST_URL = 100, 500
_MOST_PARCELS = 100
_MOST = 300  # members of a list; an order may have 200 items
#: 2001, from which on a number is a time in seconds.
_EARLIEST = 10**9
_LINK = WebAddress()


class Parcel(NamedTuple):
    """A parcel, named by its tracking number: plug-ins give it another id when it is entered again."""

    tracking_number: str
    carrier: str
    tracking_url: str
    shipped_at: dt.datetime | None
    is_delivered: bool
    lines: tuple[tuple[int, int], ...]  # (index of an item, quantity); empty if the plug-in does not say


def read_parcels(order: Mapping[str, Any], *, items: Sequence[frozenset[int]]) -> tuple[Parcel, ...]:
    """Return each parcel once. `items` has the ids of each of the order's items."""
    meta = _meta(order)
    parcels: dict[str, Parcel] = {}
    for parcel in (
        *_shipment_tracking(meta, items),
        *_aftership(meta, items),
        *_yith(meta),
        *_orders_tracking(order),
    ):
        if parcel.tracking_number and "@" not in parcel.tracking_number:  # as orders.bodies wants it
            parcels.setdefault(parcel.tracking_number, parcel)
    return tuple(parcels.values())[:_MOST_PARCELS]


def _shipment_tracking(meta: Mapping[str, Any], items: Sequence[frozenset[int]]) -> Iterator[Parcel]:
    statuses = _members(meta.get("ts_shipment_status")) or _members(meta.get("shipment_status"))
    for place, entry in _members(meta.get("_wc_shipment_tracking_items")).items():
        if isinstance(entry, dict):
            status = statuses.get(place)
            yield _parcel(
                number=entry.get("tracking_number"),
                carrier=entry.get("custom_tracking_provider")
                or entry.get("formatted_tracking_provider")
                or entry.get("tracking_provider"),
                url=entry.get("custom_tracking_link")
                or entry.get("ast_tracking_link")
                or entry.get("formatted_tracking_link"),
                shipped=entry.get("date_shipped"),
                is_delivered=isinstance(status, dict) and status.get("status") == "delivered",
                lines=_lines(entry.get("products_list"), items, id="product", quantity="qty"),
            )


def _aftership(meta: Mapping[str, Any], items: Sequence[frozenset[int]]) -> Iterator[Parcel]:
    for entry in _list(meta.get("_aftership_tracking_items")):
        if isinstance(entry, dict):
            metrics = entry.get("metrics")
            yield _parcel(
                number=entry.get("tracking_number"),
                carrier=entry.get("slug"),
                shipped=metrics.get("created_at") if isinstance(metrics, dict) else None,
                lines=_lines(entry.get("line_items"), items, id="id", quantity="quantity"),
            )


def _yith(meta: Mapping[str, Any]) -> Iterator[Parcel]:
    """Yield the parcel, once its box "picked up" is ticked."""
    if meta.get("ywot_picked_up") in ("on", "yes", "1", 1, True):
        yield _parcel(
            number=meta.get("ywot_tracking_code"),
            carrier=meta.get("ywot_carrier_name") or meta.get("ywot_carrier_id"),
            url=meta.get("ywot_carrier_url"),
            shipped=meta.get("ywot_pick_up_date"),
        )


def _orders_tracking(order: Mapping[str, Any]) -> Iterator[Parcel]:
    for line in _list(order.get("line_items")):
        if isinstance(line, dict):
            for entry in _list(_meta(line).get("_vi_wot_order_item_tracking_data")):
                if isinstance(entry, dict):
                    yield _parcel(
                        number=entry.get("tracking_number"),
                        carrier=entry.get("carrier_name") or entry.get("carrier_slug"),
                        url=entry.get("carrier_url"),
                        shipped=entry.get("time"),
                    )


def _parcel(
    *,
    number: object,
    carrier: object,
    url: object = None,
    shipped: object = None,
    is_delivered: bool = False,
    lines: tuple[tuple[int, int], ...] = (),
) -> Parcel:
    tracking_number = _text(str(number) if type(number) is int else number)
    return Parcel(
        tracking_number, _text(carrier), _url(url, tracking_number), _time(shipped), is_delivered, lines
    )


def _lines(
    listed: object, items: Sequence[frozenset[int]], *, id: str, quantity: str
) -> tuple[tuple[int, int], ...]:
    """Return the lines, or none if one of them is of no item or of several."""
    lines: dict[int, int] = {}
    for entry in _list(listed):
        try:
            wanted, count = int(entry[id]), int(entry[quantity])
        except (LookupError, TypeError, ValueError, OverflowError):
            return ()
        hits = [index for index, ids in enumerate(items) if wanted in ids]
        if len(hits) != 1 or count < 1:
            return ()
        lines[hits[0]] = lines.get(hits[0], 0) + count
    return tuple(sorted(lines.items()))


def _meta(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by key. A later entry of a key wins, as WooCommerce shows it."""
    entries = holder.get("meta_data")
    return {
        entry["key"]: entry.get("value")
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict) and isinstance(entry.get("key"), str)
    }


def _list(value: object) -> list[Any]:
    return list(_members(value).values())


def _members(value: object) -> dict[str, Any]:
    """Return a list's members by place. PHP makes an object of a list that lost a member.

    Some plug-ins write either as JSON in a text. Leave out what exceeds `_MOST`.
    """
    if isinstance(value, str) and value.startswith(("[", "{")):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    if isinstance(value, list):
        value = {str(place): member for place, member in enumerate(value)}
    return dict(itertools.islice(value.items(), _MOST)) if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return one_line(one_line(value)[:_LONGEST]) if isinstance(value, str) else ""


def _url(value: object, number: str) -> str:
    """Return a link, in which plug-ins write `%number%`, `{tracking_number}` or `%1$s` for the number."""
    if not isinstance(value, str):
        return ""
    for placeholder in ("%number%", "{tracking_number}", "%1$s"):
        value = value.replace(placeholder, quote(number))
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
