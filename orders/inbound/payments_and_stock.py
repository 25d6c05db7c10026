"""What events of other services do to orders. Each handler runs in the inbox's transaction (docs/events.md).

A handler changes the order, or finds that it is as the event wants it, or raises `Rejected` with the reason
that an operator reads.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

from django.conf import settings

from orders import services
from orders.inbound import commands, external
from orders.inbound.reading import refusals_rejected
from orders.models import Order
from orders.transitions import Refused
from outbox.events.consuming.envelope import Envelope, Rejected
from outbox.events.consuming.inbox import Handler

NAME = "orders"
_REASON = re.compile(r"[A-Z][A-Z0-9_]{0,49}")
_PRODUCT = re.compile(r"[A-Za-z0-9._:/-]{1,100}")


def payment_succeeded(event: Envelope) -> None:
    """Pay the order. A second payment, or one for a cancelled order, is rejected: it has to be returned."""
    order_id = _order_id(event)
    with refusals_rejected():
        try:
            services.pay_order(order_id=order_id)
        except Refused as error:
            raise Rejected(f"the payment was not expected: {error}") from error


def payment_refunded(event: Envelope) -> None:
    """Record a refund of `amount`, or of all that is left; also on a cancelled order that had been paid."""
    amount = event.data.get("amount")
    if amount is not None and (type(amount) is not int or amount < 1):
        raise Rejected(f"its amount is {amount!r}, not a whole number of minor units")
    with refusals_rejected():
        services.refund_order(order_id=_order_id(event), amount=amount)


def stock_reserved(event: Envelope) -> None:
    """Confirm the order. Before its payment the stock is remembered; a second time nothing changes."""
    order = _order(event)
    if order.stock_reserved_at is not None and order.status != Order.Status.CANCELLED:
        return
    with refusals_rejected():
        services.confirm_order(order_id=order.id)


def stock_insufficient(event: Envelope) -> None:
    """Cancel the order, with an e-mail and an event that say why. A cancelled order does not change."""
    order = _order(event)
    if order.status == Order.Status.CANCELLED:
        return
    with refusals_rejected():
        services.cancel_order(order_id=order.id, reason=_reason(event), cause=_cause(event))


#: By topic: the type of an event and its version. A `.v2` may stand beside its `.v1`.
OTHER_SERVICES: dict[str, Handler] = {
    "payment.payment.succeeded.v1": payment_succeeded,
    "payment.payment.refunded.v1": payment_refunded,
    "warehouse.stock.reserved.v1": stock_reserved,
    "warehouse.stock.insufficient.v1": stock_insufficient,
}
HANDLERS: dict[str, Handler] = {**OTHER_SERVICES, **external.HANDLERS, **commands.HANDLERS}
#: Topics that this service publishes to as well.
OWN_TOPICS = frozenset(external.HANDLERS)


def subscribed() -> dict[str, Handler]:
    """Return the handlers of the topics that the settings ask for."""
    return {
        **OTHER_SERVICES,
        **(external.HANDLERS if settings.ORDER_SOURCES else {}),
        **(commands.HANDLERS if settings.EVENT_COMMANDS else {}),
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


def _cause(event: Envelope) -> dict[str, str]:
    """Return what the order's own event tells other services: codes alone, no text that may hold a name."""
    reason, product = event.data.get("reason"), event.data.get("productId")
    cause = {"reason": "INSUFFICIENT_STOCK"}
    if isinstance(reason, str) and _REASON.fullmatch(reason):
        cause["reason"] = reason
    if isinstance(product, str) and _PRODUCT.fullmatch(product):
        cause["productId"] = product
    return cause
