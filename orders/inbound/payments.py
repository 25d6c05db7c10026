"""Handle events about payments (docs/reference/events.md).

Each function returns the change of an order, which saves nothing if the event comes too late. If a person
must look at the event, it raises `Rejected` with the reason.
"""

from __future__ import annotations

import datetime as dt
import functools
import re
import uuid
from typing import Any

from django.db import transaction
from rest_framework import serializers

from events.consuming.envelope import Envelope, Rejected
from orders import services
from orders.bodies import RefundId
from orders.fields import MAX_AMOUNT
from orders.inbound.reading import CURRENCY_FORM, InboundTopic, order_handler, read_data
from orders.models import RefundWay
from orders.services import OrderChange
from orders.transitions import ExternallyOwned, InvalidTransition
from web.api.fields import Amount, Code, StrictSerializer

#: The topic of payments.
PAYMENT = "payment.payment.succeeded.v1"
#: Payment providers write their codes in either case: card_declined, INSUFFICIENT_FUNDS, 51.
_REASON_CODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,49}")


class PaymentData(StrictSerializer):
    """The money that arrived."""

    amount = Amount(
        required=False,
        min_value=1,
        max_value=MAX_AMOUNT,
        help_text="In minor units. If present, it must be the order's total",
    )
    currency = Code(
        pattern=CURRENCY_FORM,
        required=False,
        wanted="three capital letters, such as USD",
        help_text="If present, it must be the order's currency",
    )


class RefundedAmount(Amount):
    """An amount that some balance can be. The released schema names no maximum and must not get one."""

    def to_internal_value(self, data: Any) -> int:
        value = super().to_internal_value(data)
        if value > MAX_AMOUNT:
            raise serializers.ValidationError(f"Ensure this value is less than or equal to {MAX_AMOUNT}.")
        return value


class RefundData(PaymentData):
    """The money that went back."""

    amount = RefundedAmount(required=False, min_value=1, help_text="In minor units")
    refund_id = RefundId(required=False)


class FailureData(StrictSerializer):
    """The handler ignores a code that has another form."""

    reason_code = Code(
        pattern=_REASON_CODE, required=False, help_text="The payment provider's code. Other texts are ignored"
    )


def payment_succeeded(event: Envelope, order_id: uuid.UUID) -> OrderChange:
    """Mark the order paid.

    Reject a second payment, one for a cancelled order, or one of other money. A person must return it. The
    first two leave a trace on the order.
    """
    money = read_data(PaymentData, event.data, strict=False)
    try:
        return services.pay(order_id=order_id, paid_at=event.timestamp, **money)
    except ExternallyOwned as error:
        raise Rejected(f"the payment was not expected: {error}") from error
    except InvalidTransition as error:
        note = functools.partial(_note_unexpected, order_id=order_id, event_id=event.id, **money)
        raise Rejected(f"the payment was not expected: {error}", then=note) from error


def _note_unexpected(**values: Any) -> None:
    with transaction.atomic():
        services.note_unexpected_payment(**values).save()


def payment_failed(event: Envelope, order_id: uuid.UUID) -> OrderChange:
    """Record the failed payment of a pending order. Reject it unless it happened before the order was paid.

    A failure of an earlier attempt may arrive late, and changes nothing.
    """
    code = event.data.get("reasonCode")
    code = code if isinstance(code, str) and _REASON_CODE.fullmatch(code) else ""
    # A failure without a time may be later than the payment.
    failed_at = event.timestamp or dt.datetime.max.replace(tzinfo=dt.UTC)
    return services.fail_payment(order_id=order_id, failed_at=failed_at, reason_code=code)


def payment_refunded(event: Envelope, order_id: uuid.UUID) -> OrderChange:
    """Refund `amount`, or the whole balance. A cancelled order can be refunded if it was paid."""
    data = read_data(RefundData, event.data, strict=False)
    return services.refund(order_id=order_id, way=RefundWay.EVENT, **data)


TOPICS = {
    PAYMENT: InboundTopic(order_handler(payment_succeeded), PaymentData, "A payment for an order arrived"),
    "payment.payment.failed.v1": InboundTopic(
        order_handler(payment_failed),
        FailureData,
        "A payment failed. The order stays pending. The customer gets an e-mail only if NOTIFY_ON"
        " has order.payment_failed: most checkouts have said it already",
    ),
    "payment.payment.refunded.v1": InboundTopic(
        order_handler(payment_refunded),
        RefundData,
        "Money went back to the customer. Without an amount, it was the whole balance",
    ),
}
