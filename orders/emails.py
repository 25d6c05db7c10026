"""The variables of an order's e-mail, as plain data: notifications does not know `Order`.

docs/guides/templates.md explains each variable to the authors of templates.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from notifications.content.profiles import find_profile
from notifications.content.rendering import email_language
from notifications.content.sample_orders import USUAL
from orders.bodies import OrderBody
from orders.breakdown import SHOWN_ITEMS, Row, break_down, count_lines
from orders.fields import CHARGE_KINDS, DETAILS, NO_DETAILS, ORDER_FIELDS
from runtime.texts import one_line
from web.api.fields import Text

if TYPE_CHECKING:
    from orders.models import Order

#: The columns that every e-mail shows.
_SHOWN = {field.name: field.sample for field in ORDER_FIELDS if field.sample is not None}
_values = operator.attrgetter(*_SHOWN)
#: The longest texts of those that are texts of any form.
_TEXTS = {
    name: field.max_length or 0
    for name, field in OrderBody().fields.items()
    if name in _SHOWN and type(field) is Text
}
#: A value of each variable that docs/guides/templates.md lists, except those that every shop's setting gives.
SAMPLE: Mapping[str, object] = {
    **_SHOWN,
    "items": [
        {"name": "Ceramic mug", "quantity": 2, "unit_amount": 1900, "line_amount": 3800},
        {"name": "Tea towel", "quantity": 1, "unit_amount": 2500, "line_amount": 2500},
    ],
    "more_items": 1,
    "more_items_amount": 400,
    "charges": [
        {"kind": "discount", "label": "SPRING", "charge_amount": -400},
        {"kind": "shipping", "label": "DHL", "charge_amount": 590},
    ],
    "included_taxes": [{"label": "VAT 19 %", "tax_amount": 1100}],
    "is_free": False,
    **DETAILS,
    "has_details": True,
    "refund_amount": 1900,
    "refunded_amount": 2900,
    "remaining_amount": 3990,
    "refunded_before": True,
    "time_zone": "",
    "ordered_at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "changed_at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    "reason": "Sold out",
    "tracking_url": "https://parcels.example.com/42",
    "was_paid": True,
    "parcel_items": [{"name": "Ceramic mug", "quantity": 1}, {"name": "Tea towel", "quantity": 1}],
    "more_parcel_items": 1,
    "left_items": [{"name": "Ceramic mug", "quantity": 1}],
    "more_left_items": 1,
    "all_shipped": True,
    "shipped_before": True,
    "carrier": "DHL",
    "tracking_number": "00340434161094042557",
    "shipped_at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    "corrected": True,
    "parcels": [
        {"carrier": "GLS", "tracking_number": "50346007538", "tracking_url": "https://parcels.example.com/43"}
    ],
}
#: The same with as little data as possible. An order without a reference shows the end of its id.
_BARE: Mapping[str, object] = {
    **SAMPLE,
    **dict.fromkeys(_TEXTS, ""),
    "reference": SAMPLE["reference"],
    **dict.fromkeys(("reason", "carrier", "tracking_number", "tracking_url"), ""),
    **NO_DETAILS,
    "has_details": False,
    **dict.fromkeys(("more_items_amount", "refund_amount", "refunded_amount", "remaining_amount")),
    "shipped_at": None,
    **dict.fromkeys(("refunded_before", "was_paid", "all_shipped", "shipped_before", "corrected"), False),
    **{name: [] for name in ("items", "charges", "included_taxes", "parcel_items", "left_items", "parcels")},
    **dict.fromkeys(("more_items", "more_parcel_items", "more_left_items"), 0),
}
#: The same with the longest texts and the most items.
_LONG: Mapping[str, object] = {
    **SAMPLE,
    **{name: "W" * most for name, most in _TEXTS.items()},
    "items": [
        {"name": "W" * 200, "quantity": 999, "unit_amount": 999_999_99, "line_amount": 999_999_99}
        for _ in range(SHOWN_ITEMS)
    ],
    "charges": [
        {"kind": kind, "label": "W" * 100, "charge_amount": -999_999_99}
        for kind in ("shipping", "discount", "gift_card", "tax", "fee")
    ],
    "included_taxes": [{"label": "W" * 100, "tax_amount": 999_999_99}],
    **{name: ["W" * 100] * 8 for name in ("delivery_address", "billing_address")},
    **{name: [{"name": "W" * 200, "quantity": 999}] * SHOWN_ITEMS for name in ("parcel_items", "left_items")},
    **dict.fromkeys(("carrier", "tracking_number"), "W" * 100),
    "parcels": [{"carrier": "W" * 100, "tracking_number": "W" * 100, "tracking_url": ""}] * 3,
    "reason": "W" * 500,
}
#: An order whose charges have no names, and nothing to pay.
_FREE: Mapping[str, object] = {
    **SAMPLE,
    "is_free": True,
    "items": [{"name": "Tea towel", "quantity": 3, "unit_amount": None, "line_amount": 1000}],
    "charges": [
        {"kind": kind, "label": "", "charge_amount": -100}
        for kind in (*CHARGE_KINDS, "items", "extras", "rounding", "other_charges", "other_reductions")
    ],
    "included_taxes": [{"label": "", "tax_amount": 0}],
    "billing_address": SAMPLE["delivery_address"],
}
#: The last parcel of an order that left in several.
_DISPATCHED: Mapping[str, object] = {**SAMPLE, "left_items": [], "more_left_items": 0, "corrected": False}
#: The same for every event, by the names that the editor of texts shows.
SAMPLES = {
    "everything": SAMPLE,
    "least data": _BARE,
    "long texts": _LONG,
    "nothing to pay": _FREE,
    "all dispatched": _DISPATCHED,
}


#: The e-mails that show all details of an order, and those that show some.
_WITH_DETAILS = dict.fromkeys(
    ("order.placed", "order.paid", "order.confirmed", "order.completed"), tuple(NO_DETAILS)
) | {"order.shipped": ("delivery_address",)}
#: The variables that only some events have.
_OF_EVENTS = {
    "order.part_refunded": ("refund_amount", "refunded_amount", "remaining_amount", "refunded_before"),
    "order.refunded": ("refund_amount", "refunded_amount"),
    "order.completed": ("tracking_url",),
    "order.cancelled": ("reason", "was_paid"),
    "order.shipped": (
        *("parcel_items", "left_items", "more_left_items"),
        *("carrier", "tracking_number", "tracking_url", "shipped_at"),
    ),
    "order.delivered": ("parcel_items", "shipped_at"),
}
#: The variables that choose a rarer text, which no preview of a sample shows.
_RARE = ("more_parcel_items", "all_shipped", "shipped_before", "corrected", "parcels")


def sample_for(event_type: str) -> Mapping[str, object]:
    """Return the variables of a sample order after an event."""
    shown = _OF_EVENTS.get(event_type, ())
    some = {name for names in (*_OF_EVENTS.values(), _RARE) for name in names}
    sample = {**SAMPLE, **{name: _BARE[name] for name in some.difference(shown)}}
    with_details = _WITH_DETAILS.get(event_type, ())
    sample |= {name: empty for name, empty in NO_DETAILS.items() if name not in with_details}
    sample["has_details"] = bool(with_details)
    if event_type == "order.refunded":
        sample |= dict.fromkeys(shown, SAMPLE["total_amount"])
    return sample


def samples_of(event_type: str) -> Mapping[str, Mapping[str, object]]:
    """Return the variables of all sample orders after an event."""
    return {**SAMPLES, USUAL: sample_for(event_type)}


def preview_context(*, order: Order, event_type: str, shipment: Mapping[str, object]) -> dict[str, object]:
    """Return the variables with which an order's e-mail is previewed.

    `shipment` is what `orders.parcels.shown_in_preview` returns. Values that only the event gives, such as
    the amount of a refund, are a sample's if the order has none.
    """
    is_of_shipment = "parcel_items" in _OF_EVENTS.get(event_type, ())
    change = {**present_change(order), **(shipment if is_of_shipment else {})}
    context = email_context(order=order, event_type=event_type, change=change)
    sample = sample_for(event_type)
    return context | {
        name: sample[name] for name in _OF_EVENTS.get(event_type, ()) if context[name] in (None, "")
    }


#: Details that only the order's own address may get: a link may need no login.
PRIVATE_DETAILS = ("customer_note", "order_url")


def shown_details(order: Order, event_type: str) -> Mapping[str, object]:
    """Return what the e-mail about an event shows of the order's details. The others are empty."""
    if not order.details:
        return NO_DETAILS
    shown = _WITH_DETAILS.get(event_type, ())
    return {
        name: order.details.get(name, empty) if name in shown else empty for name, empty in NO_DETAILS.items()
    }


def is_private(order: Order, event_type: str) -> bool:
    """Return whether the e-mail about an event shows something that only the order's own address may get."""
    shown = _WITH_DETAILS.get(event_type, ())
    return any(order.details.get(name) for name in PRIVATE_DETAILS if name in shown)


def email_context(*, order: Order, event_type: str, change: Mapping[str, object]) -> dict[str, object]:
    """Return the variables of an order's e-mail about an event: strings, ints, datetimes, and lists.

    `order` has its state after the change. `change` may have `at` (datetime), `amount` (int: the amount of
    this refund), `reason` (str), `tracking_url` (str) and `was_paid` (bool: whether a cancelled order was
    paid), for a completed order what `fulfilment_before` returns, for a shipment what `orders.parcels.shown`
    returns, and `parcels`, the tracking of others that left in the same save. Amounts are in minor units. A
    value that the e-mail does not show is None.
    """
    parts = break_down(items=order.items, charges=order.charges, total=order.total_amount)
    parcel, left = (_find_items(order, change.get(key)) for key in ("parcel_lines", "left_lines"))
    refund = change.get("amount")
    refunded = order.refunded_amount
    return {
        **dict(zip(_SHOWN, _values(order), strict=True)),
        "reference": one_line(order.reference) or _short_id(order),
        "items": [
            {
                "name": line.name,
                "quantity": line.quantity,
                "unit_amount": line.unit_amount,
                "line_amount": line.amount,
            }
            for line in parts.lines
        ],
        "more_items": parts.more,
        "more_items_amount": parts.more_amount if parts.more else None,
        "charges": [_charge(row, "charge_amount") for row in parts.rows],
        "included_taxes": [_charge(row, "tax_amount") for row in parts.included],
        "is_free": not order.total_amount,
        **(details := shown_details(order, event_type)),
        "has_details": any(details.values()),
        "refund_amount": refund,
        "refunded_amount": refunded or None,
        "remaining_amount": order.total_amount - refunded if 0 < refunded < order.total_amount else None,
        "refunded_before": isinstance(refund, int) and refund < refunded,
        "time_zone": order.details.get("time_zone", ""),
        "ordered_at": order.created_at,
        "changed_at": change.get("at", order.updated_at),
        "reason": change.get("reason", ""),
        "tracking_url": change.get("tracking_url", ""),
        "was_paid": bool(change.get("was_paid")) and order.total_amount > 0,
        "parcel_items": parcel.shown,
        "more_parcel_items": parcel.more,
        "left_items": left.shown,
        "more_left_items": left.more,
        "all_shipped": bool(change.get("all_shipped")),
        "shipped_before": bool(change.get("shipped_before")),
        "carrier": change.get("carrier", ""),
        "tracking_number": change.get("tracking_number", ""),
        "shipped_at": change.get("shipped_at"),
        "corrected": bool(change.get("corrected")),
        "parcels": change.get("parcels", []),
    }


def default_locale(*, source: str) -> str:
    """Return the locale of a source's order whose shop gave none."""
    return find_profile(source).default_locale or "en"


def language_of(order: Order) -> str:
    """Return the code of the language in which an order's e-mails are written."""
    return email_language(order.locale, profile=find_profile(order.source))


def present_change(order: Order) -> dict[str, object]:
    """Return those values of the last change that the order's row still shows."""
    return {
        "amount": order.refunded_amount or None,
        "was_paid": order.paid_at is not None,
        **fulfilment_before(order.fulfilment),
    }


def fulfilment_before(fulfilment: str) -> dict[str, bool]:
    """Return what the e-mail of a completed order says of the parcels that left before."""
    return {
        "shipped_before": fulfilment == "part_shipped",
        "all_shipped": fulfilment in ("shipped", "delivered"),
    }


def _charge(row: Row, name: str) -> dict[str, object]:
    return {"kind": row.kind, "label": row.label, name: row.amount}


class _Items(NamedTuple):
    """The items of a shipment's lines, and how many more lines of the shop it has."""

    shown: list[dict[str, object]]
    more: int


def _find_items(order: Order, lines: object) -> _Items:
    """Return the items of a shipment's lines. Skip those that the order does not have.

    An item that stands for many lines has a name for programs alone, and counts as so many more.
    """
    assert lines is None or isinstance(lines, Iterable)
    there = [line for line in lines or () if line["item"] < len(order.items)]
    items = [order.items[line["item"]] for line in there]
    named = [
        {"name": item["name"], "quantity": line["quantity"]}
        for item, line in zip(items, there, strict=True)
        if "lines" not in item
    ]
    shown = named[:SHOWN_ITEMS]
    return _Items(shown, count_lines(items) - len(shown))


def _short_id(order: Order) -> str:
    """Return the end of the id. Orders of one minute share its beginning, the time."""
    return order.id.hex[-8:].upper()
