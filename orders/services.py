"""Place and change orders, for callers inside this system: event handlers and commands.

Each function runs in one transaction, its own or the caller's. A change locks the order's row and writes the
order with its events and e-mails (orders.changes). The API makes the same changes, but orders.api.changing
writes them without a lock.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction

from orders import changes
from orders.models import Order
from runtime.database.clock import read_database_time


class OrderNotFound(LookupError):
    """No order has that id."""


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
    change = changes.place(
        now=read_database_time(),
        user_id=user_id,
        email=email,
        total_amount=total_amount,
        name=name,
        currency=currency,
        locale=locale,
        reference=reference,
        items=items,
    )
    change.write()
    return change.order


def lock_and_change(*, order_id: uuid.UUID, decide: changes.Decide, **values: Any) -> Order:
    """Lock an order and write the change that `decide` returns. `decide` gets `values` by keyword.

    Raise `OrderNotFound`, or a `ChangeRefused` of `decide`, such as `InvalidTransition`.
    """
    with transaction.atomic(savepoint=False):
        try:
            seen = Order.objects.lock(order_id=order_id)
        except Order.DoesNotExist:
            raise OrderNotFound(f"There is no order {order_id}.") from None
        change = decide(seen, **values)
        if not change.write().has_change:
            raise RuntimeError(f"the locked order {order_id} was changed by another session")
    return change.order


def pay_order(
    *,
    order_id: uuid.UUID,
    paid_at: dt.datetime | None = None,
    amount: int | None = None,
    currency: str | None = None,
) -> Order:
    """Mark an order paid, and confirm it if its stock was reserved before. Raise as `lock_and_change`.

    `paid_at` is the payment service's time of the payment, if known. `amount` (minor units) and `currency`,
    if known, must be the order's.
    """
    return lock_and_change(
        order_id=order_id, decide=changes.pay, paid_at=paid_at, amount=amount, currency=currency
    )


def fail_payment(*, order_id: uuid.UUID, reason_code: str = "") -> Order:
    """Record a failed payment of a pending order. Raise as `lock_and_change`.

    Each has an event. It has an e-mail only if the order got none of this kind in the last hour.
    """
    return lock_and_change(order_id=order_id, decide=changes.fail_payment, reason_code=reason_code)


def confirm_order(*, order_id: uuid.UUID) -> Order:
    """Confirm a paid order, or record that a pending one's stock is reserved. Raise as `lock_and_change`."""
    return lock_and_change(order_id=order_id, decide=changes.confirm)


def complete_order(*, order_id: uuid.UUID, tracking_url: str = "") -> Order:
    """Complete an order. Raise as `lock_and_change`."""
    return lock_and_change(order_id=order_id, decide=changes.complete, tracking_url=tracking_url)


def cancel_order(*, order_id: uuid.UUID, reason: str = "", cause: Mapping[str, str] | None = None) -> Order:
    """Cancel an order. Raise as `lock_and_change`."""
    return lock_and_change(order_id=order_id, decide=changes.cancel, reason=reason, cause=cause)


def refund_order(*, order_id: uuid.UUID, amount: int | None = None, currency: str | None = None) -> Order:
    """Refund `amount` minor units, or the whole balance. Raise as `lock_and_change`.

    `currency`, if known, must be the order's.
    """
    return lock_and_change(order_id=order_id, decide=changes.refund, amount=amount, currency=currency)
