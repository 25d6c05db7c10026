"""The variables of an order's e-mail, as plain data: notifications does not know `Order`.

docs/guides/templates.md explains each variable to the authors of templates.
"""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING

from notifications.profiles import find_profile
from orders.fields import ORDER_FIELDS, Kind
from runtime.texts import one_line

if TYPE_CHECKING:
    from orders.models import Order

#: The columns that every e-mail shows.
_SHOWN = {field.name: field for field in ORDER_FIELDS if field.sample is not None}
_values = operator.attrgetter(*_SHOWN)
#: A value of each variable that docs/guides/templates.md lists, except those that every shop's setting gives.
SAMPLE: Mapping[str, object] = {
    **{name: field.sample for name, field in _SHOWN.items()},
    "items": [
        {"name": "Ceramic mug", "quantity": 2, "unit_amount": 1900, "line_amount": 3800},
        {"name": "Tea towel", "quantity": 1, "unit_amount": 2500, "line_amount": 2500},
    ],
    "more_items": 1,
    "charges_amount": 590,
    "refund_amount": 1900,
    "refunded_amount": 2900,
    "remaining_amount": 3990,
    "refunded_before": True,
    "ordered_at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "changed_at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    "reason": "Sold out",
    "tracking_url": "https://parcels.example.com/42",
    "was_paid": True,
}
#: The same with as little data as possible. An order without a reference shows the end of its id.
_BARE: Mapping[str, object] = {
    **SAMPLE,
    **{name: "" for name, field in _SHOWN.items() if field.kind is Kind.TEXT},
    "reference": SAMPLE["reference"],
    **dict.fromkeys(("reason", "tracking_url"), ""),
    **dict.fromkeys(("charges_amount", "refund_amount", "refunded_amount", "remaining_amount")),
    **dict.fromkeys(("refunded_before", "was_paid"), False),
    "items": [],
    "more_items": 0,
}
SHOWN_ITEMS = 20  # mail clients clip long e-mails, and the shop shows the whole list
#: The same with the longest texts and the most items.
_LONG: Mapping[str, object] = {
    **SAMPLE,
    **{name: "W" * (field.most or 100) for name, field in _SHOWN.items() if field.kind is Kind.TEXT},
    "items": [
        {"name": "W" * 200, "quantity": 999, "unit_amount": 999_999_99, "line_amount": 999_999_99}
        for _ in range(SHOWN_ITEMS)
    ],
    "reason": "W" * 500,
}
SAMPLES = (SAMPLE, _BARE, _LONG)


#: The variables that only some events have.
_OF_EVENTS = {
    "order.part_refunded": ("refund_amount", "refunded_amount", "remaining_amount", "refunded_before"),
    "order.refunded": ("refund_amount", "refunded_amount"),
    "order.completed": ("tracking_url",),
    "order.cancelled": ("reason", "was_paid"),
}


def sample_for(event_type: str) -> Mapping[str, object]:
    """Return the variables of a sample order after an event."""
    shown = _OF_EVENTS.get(event_type, ())
    some = {name for names in _OF_EVENTS.values() for name in names}
    sample = {**SAMPLE, **{name: _BARE[name] for name in some.difference(shown)}}
    if event_type == "order.refunded":
        sample |= dict.fromkeys(shown, SAMPLE["total_amount"])
    return sample


def preview_context(*, order: Order, event_type: str) -> dict[str, object]:
    """Return the variables with which an order's e-mail is previewed.

    Values that only the event gives, such as the amount of a refund, are a sample's if the order has none.
    """
    context = email_context(order=order, change=present_change(order))
    sample = sample_for(event_type)
    return context | {
        name: sample[name] for name in _OF_EVENTS.get(event_type, ()) if context[name] in (None, "")
    }


def email_context(*, order: Order, change: Mapping[str, object]) -> dict[str, object]:
    """Return the variables of an order's e-mail: strings, ints, datetimes and lists of dicts.

    `order` has its state after the change. `change` may have `at` (datetime), `amount` (int: the amount of
    this refund), `reason` (str), `tracking_url` (str) and `was_paid` (bool: whether a cancelled order was
    paid). Amounts are in minor units. An amount that the e-mail does not show is None.
    """
    items = [_item(item) for item in order.items]
    listed = sum(int(item["quantity"]) * int(item["unit_amount"]) for item in order.items)
    refund = change.get("amount")
    refunded = order.refunded_amount
    return {
        **dict(zip(_SHOWN, _values(order), strict=True)),
        "reference": one_line(order.reference) or _short_id(order),
        "items": items[:SHOWN_ITEMS],
        "more_items": max(0, len(items) - SHOWN_ITEMS),
        "charges_amount": order.total_amount - listed if 0 < listed < order.total_amount else None,
        "refund_amount": refund,
        "refunded_amount": refunded or None,
        "remaining_amount": order.total_amount - refunded if 0 < refunded < order.total_amount else None,
        "refunded_before": isinstance(refund, int) and refund < refunded,
        "ordered_at": order.created_at,
        "changed_at": change.get("at", order.updated_at),
        "reason": change.get("reason", ""),
        "tracking_url": change.get("tracking_url", ""),
        "was_paid": bool(change.get("was_paid")),
    }


def default_locale(*, source: str) -> str:
    """Return the locale of a source's order whose shop gave none."""
    return find_profile(source).default_locale or "en"


def present_change(order: Order) -> dict[str, object]:
    """Return those values of the last change that the order's row still shows."""
    return {"amount": order.refunded_amount or None, "was_paid": order.paid_at is not None}


def _item(item: Mapping[str, object]) -> dict[str, object]:
    quantity, unit_amount = item["quantity"], item["unit_amount"]
    assert isinstance(quantity, int) and isinstance(unit_amount, int)
    return {
        "name": item["name"],
        "quantity": quantity,
        "unit_amount": unit_amount,
        "line_amount": quantity * unit_amount,
    }


def _short_id(order: Order) -> str:
    """Return the end of the id. Orders of one minute share its beginning, the time."""
    return order.id.hex[-8:].upper()
