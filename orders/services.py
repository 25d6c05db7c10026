"""Every change of an order's status, for callers inside this system: event handlers and commands.

Each function runs in one transaction, its own or the caller's. It locks the order's row, changes it, and,
except where its docstring says otherwise, writes one domain event and the e-mail that the customer must get.
The API makes the same changes (orders.changes) and writes them as orders.api.changing says.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import transaction

from orders import changes
from orders.models import Order
from outbox.database.clock import database_now


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
    change = changes.place(
        now=database_now(),
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


def change_order(*, order_id: uuid.UUID, decide: changes.Decide, **values: Any) -> Order:
    """Lock an order and change it as `decide` says. `values` are the change's own.

    Raise `OrderNotFound`, and what `decide` raises, such as `InvalidTransition`.
    """
    with transaction.atomic(savepoint=False):
        try:
            seen = Order.objects.lock(order_id=order_id)
        except Order.DoesNotExist:
            raise OrderNotFound(f"There is no order {order_id}.") from None
        change = decide(seen, **values)
        if not change.write().change:
            raise RuntimeError(f"the locked order {order_id} was changed by another session")
    return change.order


def pay_order(*, order_id: uuid.UUID) -> Order:
    """Mark an order paid. Raise as `change_order`."""
    return change_order(order_id=order_id, decide=changes.pay)


def confirm_order(*, order_id: uuid.UUID) -> Order:
    """Confirm an order, or remember that its stock is reserved. Raise as `change_order`."""
    return change_order(order_id=order_id, decide=changes.confirm)


def complete_order(*, order_id: uuid.UUID, tracking_url: str = "") -> Order:
    """Complete an order. Raise as `change_order`."""
    return change_order(order_id=order_id, decide=changes.complete, tracking_url=tracking_url)


def cancel_order(*, order_id: uuid.UUID, reason: str = "", cause: Mapping[str, str] | None = None) -> Order:
    """Cancel an order. Raise as `change_order`."""
    return change_order(order_id=order_id, decide=changes.cancel, reason=reason, cause=cause)


def refund_order(*, order_id: uuid.UUID, amount: int | None = None) -> Order:
    """Refund `amount` minor units, or all that is left. Raise as `change_order`."""
    return change_order(order_id=order_id, decide=changes.refund, amount=amount)
