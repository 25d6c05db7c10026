"""Handlers for events about payments and stock, and the list of all handlers.

Each handler runs in the inbox's transaction (docs/reference/events.md). A handler changes the order, or finds
nothing to change, or raises `Rejected` with the reason that an operator reads.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

from django.conf import settings
from rest_framework import serializers

from events.consuming.envelope import Envelope, Rejected
from events.consuming.inbox import Handler
from orders import services
from orders.bodies import MAX_AMOUNT
from orders.inbound import commands, external
from orders.inbound.reading import read_data, refusals_rejected
from orders.models import Order
from orders.transitions import ExternallyOwned, InvalidTransition
from web.api.fields import Integer, StrictSerializer, Text

NAME = "orders"
#: The topic of payments.
PAYMENT = "payment.payment.succeeded.v1"
_REASON = re.compile(r"[A-Z][A-Z0-9_]{0,49}")
#: Payment providers write their codes in either case: card_declined, INSUFFICIENT_FUNDS, 51.
_REASON_CODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,49}")
_PRODUCT = re.compile(r"[A-Za-z0-9._:/-]{1,100}")
#: A currency that is no longer in use may still be refunded, so check only the form.
_CURRENCY = re.compile(r"[A-Z]{3}")


class MoneyData(StrictSerializer):
    """The money that a payment or a refund names."""

    amount = Integer(required=False, min_value=1, max_value=MAX_AMOUNT)
    currency = Text(required=False)

    def validate_currency(self, value: str) -> str:
        if not _CURRENCY.fullmatch(value):
            raise serializers.ValidationError("This must be three capital letters, such as USD.")
        return value


def payment_succeeded(event: Envelope) -> None:
    """Mark the order paid.

    Reject a second payment, one for a cancelled order, or one of other money, because a person must return
    it.
    """
    order_id = _order_id(event)
    money = read_data(MoneyData, event.data, strict=False)
    with refusals_rejected():
        try:
            services.pay_order(order_id=order_id, paid_at=event.timestamp, **money)
        except (ExternallyOwned, InvalidTransition) as error:
            raise Rejected(f"the payment was not expected: {error}") from error


def payment_failed(event: Envelope) -> None:
    """Record the failed payment of a pending order. Reject it unless it happened before the order was paid.

    A failure of an earlier attempt may arrive late, and changes nothing.
    """
    order = _order(event)
    returned = order.status in (Order.Status.CANCELLED, Order.Status.REFUNDED)
    was_earlier = order.paid_at and event.timestamp and event.timestamp <= order.paid_at
    if order.paid_at and not was_earlier and not returned:
        raise Rejected("the order was paid before: check whether the money is there")
    given = event.data.get("reasonCode")
    code = given if isinstance(given, str) and _REASON_CODE.fullmatch(given) else ""
    with refusals_rejected():
        services.fail_payment(order_id=order.id, reason_code=code)


def payment_refunded(event: Envelope) -> None:
    """Refund `amount`, or the whole balance. A cancelled order can be refunded if it was paid."""
    money = read_data(MoneyData, event.data, strict=False)
    with refusals_rejected():
        services.refund_order(order_id=_order_id(event), **money)


def stock_reserved(event: Envelope) -> None:
    """Confirm a paid order, or record that a pending order's stock is reserved. A repeat changes nothing."""
    order = _order(event)
    if order.stock_reserved_at is not None and order.status != Order.Status.CANCELLED:
        return
    with refusals_rejected():
        services.confirm_order(order_id=order.id)


def stock_insufficient(event: Envelope) -> None:
    """Cancel the order. The e-mail and the event say why. A cancelled order does not change."""
    order = _order(event)
    if order.status == Order.Status.CANCELLED:
        return
    with refusals_rejected():
        services.cancel_order(order_id=order.id, reason=_reason(event), cause=_cause(event))


#: topic -> handler. A `.v2` may have a handler next to its `.v1`.
OTHER_SERVICES: dict[str, Handler] = {
    PAYMENT: payment_succeeded,
    "payment.payment.failed.v1": payment_failed,
    "payment.payment.refunded.v1": payment_refunded,
    "warehouse.stock.reserved.v1": stock_reserved,
    "warehouse.stock.insufficient.v1": stock_insufficient,
}
HANDLERS: dict[str, Handler] = {**OTHER_SERVICES, **external.HANDLERS, **commands.HANDLERS}
#: Topics to which orderpost publishes, too.
OWN_TOPICS = frozenset(external.HANDLERS)


def subscribed() -> dict[str, Handler]:
    """Return the handlers of the topics that the settings choose."""
    return {
        **OTHER_SERVICES,
        **(external.HANDLERS if settings.ORDER_SOURCES else {}),
        **(commands.HANDLERS if settings.EVENT_COMMANDS else {}),
    }


def over_http() -> dict[str, Handler]:
    """Return the handlers of the topics that the API of events takes. It takes no commands."""
    return {topic: handler for topic, handler in subscribed().items() if topic not in commands.HANDLERS}


def _order_id(event: Envelope) -> uuid.UUID:
    value: Any = event.data.get("orderId")
    try:
        return uuid.UUID(value)
    except (ValueError, TypeError, AttributeError) as error:
        raise Rejected("its data.orderId is not a UUID") from error


def _order(event: Envelope) -> Order:
    """Return the order, locked so that it cannot change before the service changes it. Raise `Rejected`."""
    order = Order.objects.select_for_update().filter(id=_order_id(event)).first()
    if order is None:
        raise Rejected(f"There is no order {_order_id(event)}.")
    return order


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
