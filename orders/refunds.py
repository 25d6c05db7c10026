"""Find the refunds of an order that are one refund, or may be one that came by two ways."""

from __future__ import annotations

import datetime as dt

from django.db.models import Q

from orders.models import OrderRefund, RefundWay

#: Equal refunds by two ways within this time may be one refund, unless both have an id.
ONE_REFUND = dt.timedelta(hours=1)
_WAYS = {RefundWay.API: "over the API", RefundWay.EVENT: "as an event"}


def read_similar(refund: OrderRefund) -> list[OrderRefund]:
    """Return the stored refunds that are, or may be, the same as a new one, oldest first."""
    similar = Q(amount=refund.amount, at__gt=refund.at - ONE_REFUND) & ~Q(way=refund.way)
    if refund.refund_id is not None:
        similar |= Q(refund_id=refund.refund_id)
    return list(OrderRefund.objects.filter(similar, order_id=refund.order_id).order_by("at"))


def may_be_one(refund: OrderRefund, other: OrderRefund) -> bool:
    """Return whether two refunds of one order, which both count, may be the same money."""
    is_equal = refund.amount == other.amount and refund.way != other.way
    has_id = refund.refund_id is not None and other.refund_id is not None
    return is_equal and not has_id and abs(refund.at - other.at) < ONE_REFUND


def describe_doubt(refund: OrderRefund, earlier: OrderRefund) -> str:
    """Return the warning about two refunds that `may_be_one`."""
    ways = f"{_WAYS[RefundWay(earlier.way)]} and {_WAYS[RefundWay(refund.way)]}"
    return (
        f"Equal refunds came {ways} within an hour, and both count. If they are one refund, send its id each"
        " time: refund_id over the API, refundId in events."
    )
