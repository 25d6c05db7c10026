"""Every change of an order's status.

Each function runs in one transaction, its own or the caller's. It locks the order's row, changes it, and,
except where its docstring says otherwise, writes one domain event and the e-mail that the customer must get.
The API and the event handlers call these functions.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction

from notifications.services import enqueue_email
from orders.emails import email_context
from orders.events import EVENTS, event_payload
from orders.models import Order
from orders.transitions import Action, RefundExceedsBalance, check, next_status
from outbox.core import context
from outbox.events.publish import publish_event


class OrderNotFound(LookupError):
    """There is no order with that id."""


def place_order(
    *,
    user_id: uuid.UUID,
    email: str,
    total_amount: int,
    name: str = "",
    currency: str = "USD",
    locale: str = "en",
    reference: str = "",
    items: Sequence[Mapping[str, Any]] = (),
) -> Order:
    """Save a new, pending order with its event and e-mail. `total_amount` is in minor units."""
    with transaction.atomic(savepoint=False):
        order = Order.objects.create(
            user_id=user_id,
            email=email,
            name=name,
            total_amount=total_amount,
            currency=currency,
            locale=locale,
            reference=reference,
            items=[dict(item) for item in items],
            correlation_id=context.current().correlation_id,
        )
        lines = [{key: item[key] for key in ("sku", "quantity")} for item in order.items]
        _record(order, "order.placed", order.version, at=order.created_at, details={"items": lines})
    return order


def pay_order(*, order_id: uuid.UUID) -> Order:
    """Mark an order paid, and confirm it at once if its stock was reserved before.

    Raise `OrderNotFound` or `InvalidTransition`.
    """
    with transaction.atomic(savepoint=False):
        order, now = _lock(order_id)
        order.status = next_status(order=order, action=Action.PAY)
        order.paid_at = now
        versions = 1
        _record(order, "order.paid", order.version + versions, at=now)
        if order.stock_reserved_at:
            order.status = next_status(order=order, action=Action.CONFIRM)
            versions = 2
            _record(order, "order.confirmed", order.version + versions, at=now)
        Order.objects.save_change(order, fields=["paid_at"], now=now, versions=versions)
    return order


def confirm_order(*, order_id: uuid.UUID) -> Order:
    """Confirm a paid order. Of a pending one, only remember that its stock is reserved.

    Remembering writes no event and no e-mail and keeps the version. Raise as `pay_order`.
    """
    with transaction.atomic(savepoint=False):
        order, now = _lock(order_id)
        status = next_status(order=order, action=Action.CONFIRM)
        if status == order.status:
            if order.stock_reserved_at is None:
                order.stock_reserved_at = now
                Order.objects.save_change(order, fields=["stock_reserved_at"], now=now, versions=0)
            return order
        order.status = status
        order.stock_reserved_at = order.stock_reserved_at or now
        _record(order, "order.confirmed", order.version + 1, at=now)
        Order.objects.save_change(order, fields=["stock_reserved_at"], now=now, versions=1)
    return order


def complete_order(*, order_id: uuid.UUID, tracking_url: str = "") -> Order:
    """Complete an order. A part-refunded one keeps its status. Raise as `pay_order`."""
    with transaction.atomic(savepoint=False):
        order, now = _lock(order_id)
        order.status = next_status(order=order, action=Action.COMPLETE)
        order.completed_at = now
        details = {"trackingUrl": tracking_url} if tracking_url else {}
        _record(
            order, "order.completed", order.version + 1, at=now, details=details, tracking_url=tracking_url
        )
        Order.objects.save_change(order, fields=["completed_at"], now=now, versions=1)
    return order


def cancel_order(*, order_id: uuid.UUID, reason: str = "") -> Order:
    """Cancel an order. A paid one can be refunded afterwards. Raise as `pay_order`.

    The customer reads `reason` in the e-mail. It stays out of the event, because it may hold a name.
    """
    with transaction.atomic(savepoint=False):
        order, now = _lock(order_id)
        order.status = next_status(order=order, action=Action.CANCEL)
        was_paid = order.paid_at is not None
        details = {"wasPaid": was_paid}
        _record(
            order,
            "order.cancelled",
            order.version + 1,
            at=now,
            details=details,
            reason=reason,
            was_paid=was_paid,
        )
        Order.objects.save_change(order, fields=[], now=now, versions=1)
    return order


def refund_order(*, order_id: uuid.UUID, amount: int | None = None) -> Order:
    """Refund `amount` minor units, or all that is left.

    Raise `RefundExceedsBalance` if less than `amount` is left, else as `pay_order`.
    """
    with transaction.atomic(savepoint=False):
        order, now = _lock(order_id)
        check(order=order, action=Action.REFUND)
        balance = order.refundable_amount
        refund = balance if amount is None else amount
        if not 0 < refund <= balance:
            raise RefundExceedsBalance(amount=amount, left=balance)
        left = balance - refund
        order.status = next_status(order=order, action=Action.REFUND, left=left)
        order.refunded_amount += refund
        event = "order.part_refunded" if left else "order.refunded"
        _record(order, event, order.version + 1, at=now, details={"amount": refund}, amount=refund)
        Order.objects.save_change(order, fields=["refunded_amount"], now=now, versions=1)
    return order


def _lock(order_id: uuid.UUID) -> tuple[Order, dt.datetime]:
    try:
        return Order.objects.lock(order_id=order_id)
    except Order.DoesNotExist:
        raise OrderNotFound(f"There is no order {order_id}.") from None


def _record(
    order: Order,
    event: str,
    version: int,
    *,
    at: dt.datetime,
    details: dict[str, Any] | None = None,
    **change: Any,
) -> None:
    """Write the event and the e-mail of a change. `details` go into the event, `change` into the e-mail."""
    publish_event(
        aggregate_type="order",
        aggregate_id=order.id,
        event_type=EVENTS[event].topic,
        sequence=version,
        user_id=order.user_id,
        payload=event_payload(order=order, details=details or {}),
    )
    enqueue_email(
        order_id=order.id,
        event_type=event,
        version=version,
        recipient_email=order.email,
        to_name=order.name,
        locale=order.locale,
        context=lambda: email_context(order=order, change={"at": at, **change}),
    )
