"""Change an order for a caller inside this system, such as a command. Requests have orders.api.changing."""

from __future__ import annotations

import uuid
from typing import Any

from orders.changes import Decide
from orders.models import ORDER_ROW, Order
from runtime.database.row_change import change_row


class OrderNotFound(LookupError):
    """No order has that id."""


def write_change(*, order_id: uuid.UUID, decide: Decide, **values: Any) -> Order:
    """Write the change that `decide` returns, and return the order. `decide` gets `values` by keyword.

    Raise `OrderNotFound`, or a `Refused` of `decide`, such as `InvalidTransition`.
    """

    def attempt(_: int) -> Order | None:
        seen = ORDER_ROW.read(order_id)
        if seen is None:
            raise OrderNotFound(f"There is no order {order_id}.")
        change = decide(seen, **values)
        return change.order if change.write().has_change else None

    return change_row(attempt, lock=lambda: ORDER_ROW.read(order_id, lock=True))
