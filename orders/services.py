"""Everything that changes an order. Each function is one transaction: the order's row is locked and
changed, the e-mail that the customer must get and the domain event are written with it, or none of it is.

Called by the API and by event handlers, also inside a transaction of theirs (which it then joins).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import connection, transaction

from notifications.services import enqueue_email
from orders.emails import email_context
from orders.events import publish_order_event
from orders.models import Order
from orders.transitions import Action, RefundExceedsBalance, check, refunded_status
from outbox.core import context


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
    """This function will save a new, pending order and tell of it. `total_amount` is in minor units."""
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
        _tell(order, "order.placed", order.version, at=order.created_at, details={"items": lines})
    return order


def pay_order(*, order_id: uuid.UUID) -> Order:
    """This function will mark an order paid, and confirmed at once if its stock was reserved before.

    Raises `OrderNotFound`, `InvalidTransition`.
    """
    with transaction.atomic(savepoint=False):
        order, now = _lock(order_id, Action.PAY)
        order.status = Order.Status.PAID
        order.paid_at = now
        changes: list[tuple[str, int]] = [("order.paid", order.version + 1)]
        if order.stock_reserved_at:
            changes.append(("order.confirmed", order.version + 2))
        for event, version in changes:
            order.status = Order.Status.PAID if event == "order.paid" else Order.Status.CONFIRMED
            _tell(order, event, version, at=now)
        _save(order, now, "paid_at", changes=len(changes))
    return order


def confirm_order(*, order_id: uuid.UUID) -> Order:
    """This function will confirm a paid order, or remember for a pending one that its stock is reserved.

    Remembering is no change of the order: no event, no e-mail, the same version. Raises as `pay_order`.
    """
    with transaction.atomic(savepoint=False):
        order, now = _lock(order_id, Action.CONFIRM)
        if order.status == Order.Status.PENDING:
            if order.stock_reserved_at is None:
                order.stock_reserved_at = now
                _save(order, now, "stock_reserved_at", changes=0)
            return order
        order.stock_reserved_at = order.stock_reserved_at or now
        order.status = Order.Status.CONFIRMED
        _tell(order, "order.confirmed", order.version + 1, at=now)
        _save(order, now, "stock_reserved_at")
    return order


def complete_order(*, order_id: uuid.UUID, tracking_url: str = "") -> Order:
    """This function will mark an order completed; a part-refunded one keeps its status.

    Raises as `pay_order`.
    """
    with transaction.atomic(savepoint=False):
        order, now = _lock(order_id, Action.COMPLETE)
        order.completed_at = now
        if order.status != Order.Status.PART_REFUNDED:
            order.status = Order.Status.COMPLETED
        details = {"trackingUrl": tracking_url} if tracking_url else {}
        _tell(order, "order.completed", order.version + 1, at=now, details=details, tracking_url=tracking_url)
        _save(order, now, "completed_at")
    return order


def cancel_order(*, order_id: uuid.UUID, reason: str = "") -> Order:
    """This function will cancel an order. A paid one can be refunded afterwards. Raises as `pay_order`.

    `reason` is the customer's to read; it stays out of the event, where a name might hide in it.
    """
    with transaction.atomic(savepoint=False):
        order, now = _lock(order_id, Action.CANCEL)
        order.status = Order.Status.CANCELLED
        was_paid = order.paid_at is not None
        _tell(
            order,
            "order.cancelled",
            order.version + 1,
            at=now,
            details={"wasPaid": was_paid},
            reason=reason,
            was_paid=was_paid,
        )
        _save(order, now)
    return order


def refund_order(*, order_id: uuid.UUID, amount: int | None = None) -> Order:
    """This function will refund `amount` minor units, or all that is left.

    Raises `RefundExceedsBalance` when more was asked than is left, else as `pay_order`.
    """
    with transaction.atomic(savepoint=False):
        order, now = _lock(order_id, Action.REFUND)
        left = order.refundable_amount
        refund = left if amount is None else amount
        if not 0 < refund <= left:
            raise RefundExceedsBalance(amount=amount, left=left)
        order.refunded_amount += refund
        order.status = refunded_status(order=order, left=left - refund)
        event = "order.part_refunded" if left - refund else "order.refunded"
        _tell(order, event, order.version + 1, at=now, details={"amount": refund}, amount=refund)
        _save(order, now, "refunded_amount")
    return order


_LOCK = "SELECT *, statement_timestamp() AS database_now FROM orders WHERE id = %s FOR UPDATE"


def _lock(order_id: uuid.UUID, action: Action) -> tuple[Order, Any]:
    """Lock the order's row, check that `action` is allowed, and read the database's clock with it."""
    # By hand, here and in _save: half of what the ORM takes, on the path of every change.
    rows = list(Order.objects.raw(_LOCK, [order_id]))
    if not rows:
        raise OrderNotFound(f"There is no order {order_id}.")
    (order,) = rows
    check(order=order, action=action)
    return order, order.database_now  # type: ignore[attr-defined]  # of _LOCK


def _tell(
    order: Order, event: str, version: int, *, at: Any, details: dict[str, Any] | None = None, **change: Any
) -> None:
    """Write the event and the e-mail of a change. `details` go into the event, `change` into the e-mail."""
    publish_order_event(order=order, event=event, sequence=version, details=details or {})
    enqueue_email(
        order_id=order.id,
        event_type=event,
        version=version,
        recipient_email=order.email,
        to_name=order.name,
        locale=order.locale,
        context=lambda: email_context(order=order, change={"at": at, **change}),
    )


def _save(order: Order, now: Any, *fields: str, changes: int = 1) -> None:
    order.version += changes
    order.updated_at = now
    columns = ("status", "version", "updated_at", *fields)
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE orders SET {', '.join(f'{column} = %s' for column in columns)} WHERE id = %s",  # noqa: S608
            [*(getattr(order, column) for column in columns), order.id],
        )
