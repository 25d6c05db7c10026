"""The variables of an order's e-mail, as plain data, because notifications does not import `Order`.

orders.changes and orders.inbound.external call this for each change and pass the result to notifications. The
previews call it too. docs/guides/templates.md explains each variable to the authors of templates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orders.models import Order

SHOWN_ITEMS = 20  # mail clients clip long e-mails, and the shop shows the whole list


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
        "name": order.name,
        "reference": order.reference or _short_id(order),
        "currency": order.currency,
        "items": items[:SHOWN_ITEMS],
        "more_items": max(0, len(items) - SHOWN_ITEMS),
        "charges_amount": order.total_amount - listed if 0 < listed < order.total_amount else None,
        "total_amount": order.total_amount,
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
    """Return the end of the id, because all orders of one minute share its beginning, the time."""
    return order.id.hex[-8:].upper()
