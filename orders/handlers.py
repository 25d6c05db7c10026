"""What events of other services do to orders. Each handler runs in the inbox's transaction (docs/events.md).

A handler changes the order, or finds that it is as the event wants it, or raises `Rejected` with the reason
that an operator reads.
"""

from __future__ import annotations

import uuid
from typing import Any

from orders import services
from orders.models import Order
from orders.transitions import InvalidTransition, RefundExceedsBalance
from outbox.events.envelope import Envelope, Rejected
from outbox.events.inbox import Handler

NAME = "orders"


def payment_succeeded(event: Envelope) -> None:
    """Pay the order. A second payment, or one for a cancelled order, is rejected: it has to be returned."""
    order_id = _order_id(event)
    try:
        services.pay_order(order_id=order_id)
    except InvalidTransition as error:
        raise Rejected(f"the payment was not expected: {error}") from error
    except services.OrderNotFound as error:
        raise Rejected(str(error)) from error


def payment_refunded(event: Envelope) -> None:
    """Record a refund of `amount`, or of all that is left; also on a cancelled order that had been paid."""
    amount = event.data.get("amount")
    if amount is not None and (type(amount) is not int or amount < 1):
        raise Rejected(f"its amount is {amount!r}, not a whole number of minor units")
    try:
        services.refund_order(order_id=_order_id(event), amount=amount)
    except (InvalidTransition, RefundExceedsBalance, services.OrderNotFound) as error:
        raise Rejected(str(error)) from error


def stock_reserved(event: Envelope) -> None:
    """Confirm the order. Before its payment the stock is remembered; a second time nothing changes."""
    order = _order(event)
    if order.stock_reserved_at is not None and order.status != Order.Status.CANCELLED:
        return
    try:
        services.confirm_order(order_id=order.id)
    except (InvalidTransition, services.OrderNotFound) as error:
        raise Rejected(str(error)) from error


def stock_insufficient(event: Envelope) -> None:
    """Cancel the order, with an e-mail that says why. A cancelled order does not change."""
    order = _order(event)
    if order.status == Order.Status.CANCELLED:
        return
    try:
        services.cancel_order(order_id=order.id, reason=_reason(event))
    except (InvalidTransition, services.OrderNotFound) as error:
        raise Rejected(str(error)) from error


HANDLERS: dict[str, Handler] = {
    "payment.payment.succeeded.v1": payment_succeeded,
    "payment.payment.refunded.v1": payment_refunded,
    "warehouse.stock.reserved.v1": stock_reserved,
    "warehouse.stock.insufficient.v1": stock_insufficient,
}


def _order_id(event: Envelope) -> uuid.UUID:
    value: Any = event.data.get("orderId")
    try:
        return uuid.UUID(value)
    except (ValueError, TypeError, AttributeError) as error:
        raise Rejected("its data.orderId is no UUID") from error


def _order(event: Envelope) -> Order:
    """Lock the order, so that what is decided here still holds when the service changes it."""
    order = Order.objects.select_for_update().filter(id=_order_id(event)).first()
    if order is None:
        raise Rejected(f"There is no order {_order_id(event)}.")
    return order


def _reason(event: Envelope) -> str:
    """Return what the customer reads. The event's own `reason` may not be meant for them."""
    reason = event.data.get("customerMessage")
    return reason[:500] if isinstance(reason, str) else "Something that you ordered is out of stock."
