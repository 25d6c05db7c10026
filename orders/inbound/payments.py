"""Handle events about payments (docs/reference/events.md).

A handler decides a change of the order, or finds nothing to change, or raises `Rejected` with the reason that
an operator reads.
"""

from __future__ import annotations

import re

from rest_framework import serializers

from events.consuming.envelope import Envelope, Rejected
from events.consuming.handlers import Handler
from orders import changes
from orders.bodies import MAX_AMOUNT
from orders.changes import OrderChange
from orders.inbound.reading import order_handler, read_data
from orders.models import Order, Seen
from orders.transitions import ExternallyOwned, InvalidTransition
from web.api.fields import Integer, StrictSerializer, Text

#: The topic of payments.
PAYMENT = "payment.payment.succeeded.v1"
#: Payment providers write their codes in either case: card_declined, INSUFFICIENT_FUNDS, 51.
_REASON_CODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,49}")
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


def payment_succeeded(event: Envelope, seen: Seen) -> OrderChange:
    """Mark the order paid.

    Reject a second payment, one for a cancelled order, or one of other money, because a person must return
    it.
    """
    money = read_data(MoneyData, event.data, strict=False)
    try:
        return changes.pay(seen, paid_at=event.timestamp, **money)
    except (ExternallyOwned, InvalidTransition) as error:
        raise Rejected(f"the payment was not expected: {error}") from error


def payment_failed(event: Envelope, seen: Seen) -> OrderChange:
    """Record the failed payment of a pending order. Reject it unless it happened before the order was paid.

    A failure of an earlier attempt may arrive late, and changes nothing.
    """
    order = seen.order
    returned = order.status in (Order.Status.CANCELLED, Order.Status.REFUNDED)
    was_earlier = order.paid_at and event.timestamp and event.timestamp <= order.paid_at
    if order.paid_at and not was_earlier and not returned:
        raise Rejected("the order was paid before: check whether the money is there")
    given = event.data.get("reasonCode")
    code = given if isinstance(given, str) and _REASON_CODE.fullmatch(given) else ""
    return changes.fail_payment(seen, reason_code=code)


def payment_refunded(event: Envelope, seen: Seen) -> OrderChange:
    """Refund `amount`, or the whole balance. A cancelled order can be refunded if it was paid."""
    return changes.refund(seen, **read_data(MoneyData, event.data, strict=False))


HANDLERS: dict[str, Handler] = {
    PAYMENT: order_handler(payment_succeeded),
    "payment.payment.failed.v1": order_handler(payment_failed),
    "payment.payment.refunded.v1": order_handler(payment_refunded),
}
