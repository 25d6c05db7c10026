"""Handle events about stock, as orders.inbound.payments handles those about payments."""

from __future__ import annotations

import re
import uuid

from events.consuming.envelope import Envelope
from orders import services
from orders.bodies import MAX_REASON
from orders.inbound.reading import InboundTopic, order_handler
from orders.services import OrderChange
from web.api.fields import Code, Nothing, StrictSerializer, Text

_REASON = re.compile(r"[A-Z][A-Z0-9_]{0,49}")
_PRODUCT = re.compile(r"[A-Za-z0-9._:/-]{1,100}")


class InsufficientData(StrictSerializer):
    """The handler shortens a longer text, and ignores codes that have another form."""

    customer_message = Text(
        required=False, allow_blank=True, max_length=MAX_REASON, help_text="For the customer's e-mail"
    )
    reason = Code(
        pattern=_REASON,
        required=False,
        help_text="A code for other services; INSUFFICIENT_STOCK if absent",
    )
    product_id = Code(pattern=_PRODUCT, required=False, help_text="What is out of stock")


def stock_reserved(event: Envelope, order_id: uuid.UUID) -> OrderChange:
    """Confirm a paid order, or record that a pending order's stock is reserved. A repeat changes nothing."""
    return services.confirm(order_id=order_id, may_be_reserved=True)


def stock_insufficient(event: Envelope, order_id: uuid.UUID) -> OrderChange:
    """Cancel the order. The e-mail and the event say why. A cancelled order does not change."""
    return services.cancel(
        order_id=order_id, reason=_reason(event), cause=_cause(event), may_be_cancelled=True
    )


def _reason(event: Envelope) -> str:
    """Return the text for the customer. The event's `reason` may not be meant for customers."""
    reason = event.data.get("customerMessage")
    return reason[:MAX_REASON] if isinstance(reason, str) else "Something that you ordered is out of stock."


def _cause(event: Envelope) -> dict[str, str]:
    """Return the codes for the order's event. Leave out free text, which may contain a name."""
    reason, product = event.data.get("reason"), event.data.get("productId")
    cause = {"reason": "INSUFFICIENT_STOCK"}
    if isinstance(reason, str) and _REASON.fullmatch(reason):
        cause["reason"] = reason
    if isinstance(product, str) and _PRODUCT.fullmatch(product):
        cause["productId"] = product
    return cause


TOPICS = {
    "warehouse.stock.reserved.v1": InboundTopic(
        order_handler(stock_reserved), Nothing, "An order's stock is reserved"
    ),
    "warehouse.stock.insufficient.v1": InboundTopic(
        order_handler(stock_insufficient), InsufficientData, "An order's stock is not available"
    ),
}
