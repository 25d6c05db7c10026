"""Place or change an order for a request: read, decide, and write everything in one statement.

Called by orders.api.views.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from django.http import HttpResponse

from orders.changes import OrderChange
from orders.models import ORDER_ROW, Order
from runtime.database.row_change import change_row
from web.api.first_read import FirstRead
from web.api.idempotency import IdempotentRequest, KeyTaken
from web.api.views import ApiView


def answer_change(
    *,
    view: ApiView,
    decide: Callable[[FirstRead], OrderChange],
    present: Callable[[Order], HttpResponse],
    order_id: uuid.UUID | None = None,
) -> HttpResponse:
    """Write the change that `decide` returns, once for each idempotency key. Answer with `present(order)`.

    The statement that writes checks the token, the key, and the row of a changed order again, and writes
    nothing if one of them has changed since the read. Raise what `decide` raises, and the problems of
    `IdempotentRequest`.
    """
    idempotent = IdempotentRequest(view)

    def attempt(number: int) -> HttpResponse | None:
        read = view.first_read if number == 1 else view.read_again()
        stored = idempotent.replay(read)
        if stored is not None:
            return stored
        change = decide(read)
        answer = present(change.order)
        written = change.write(guard=idempotent.guard, inserts=idempotent.stored(answer))
        if not written.has_guard:
            raise KeyTaken
        return answer if written.has_change else None

    def lock() -> None:
        if order_id is not None:
            ORDER_ROW.read(order_id, lock=True)  # `decide` reports an order that does not exist

    try:
        with idempotent.working():
            return change_row(attempt, lock=lock)
    except KeyTaken:
        return idempotent.first_answer()
