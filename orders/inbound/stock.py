"""Handle events about stock, as orders.inbound.payments handles those about payments."""

from __future__ import annotations

import re

from events.consuming.envelope import Envelope
from events.consuming.handlers import Handler
from orders import changes
from orders.changes import OrderChange
from orders.inbound.reading import order_handler
from orders.models import Order, Seen

_REASON = re.compile(r"[A-Z][A-Z0-9_]{0,49}")
_PRODUCT = re.compile(r"[A-Za-z0-9._:/-]{1,100}")


def stock_reserved(event: Envelope, seen: Seen) -> OrderChange:
    """Confirm a paid order, or record that a pending order's stock is reserved. A repeat changes nothing."""
    order = seen.order
    if order.stock_reserved_at is not None and order.status != Order.Status.CANCELLED:
        return changes.unchanged(seen)
    return changes.confirm(seen)


def stock_insufficient(event: Envelope, seen: Seen) -> OrderChange:
    """Cancel the order. The e-mail and the event say why. A cancelled order does not change."""
    if seen.order.status == Order.Status.CANCELLED:
        return changes.unchanged(seen)
    return changes.cancel(seen, reason=_reason(event), cause=_cause(event))


def _reason(event: Envelope) -> str:
    """Return the text for the customer. The event's `reason` may not be meant for customers."""
    reason = event.data.get("customerMessage")
    return reason[:500] if isinstance(reason, str) else "Something that you ordered is out of stock."


def _cause(event: Envelope) -> dict[str, str]:
    """Return the codes for the order's event. Leave out free text, which may contain a name."""
    reason, product = event.data.get("reason"), event.data.get("productId")
    cause = {"reason": "INSUFFICIENT_STOCK"}
    if isinstance(reason, str) and _REASON.fullmatch(reason):
        cause["reason"] = reason
    if isinstance(product, str) and _PRODUCT.fullmatch(product):
        cause["productId"] = product
    return cause


HANDLERS: dict[str, Handler] = {
    "warehouse.stock.reserved.v1": order_handler(stock_reserved),
    "warehouse.stock.insufficient.v1": order_handler(stock_insufficient),
}
