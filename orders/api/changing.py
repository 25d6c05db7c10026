"""Place or change an order for a request: read, decide, and write everything in one statement.

Called by orders.api.views.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator

from django.db import transaction
from django.http import HttpResponse

from orders.changes import OrderChange
from orders.models import Order
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

    The first two attempts lock nothing between read and write. The statement that writes checks the token,
    the key, and the row of a changed order again, and writes nothing if one of them has changed. If another
    change was first, read and decide again. The third attempt locks the order before it reads, so that no
    other change can come between. Raise what `decide` raises, and the problems of `IdempotentRequest`.
    """
    idempotent = IdempotentRequest(view)
    try:
        for attempt in (1, 2, 3):
            with idempotent.working(), _locked(order_id) if attempt == 3 else contextlib.nullcontext():
                read = view.first_read if attempt == 1 else view.read_again()
                stored = idempotent.replay(read)
                if stored is not None:
                    return stored
                change = decide(read)
                answer = present(change.order)
                written = change.write(guard=idempotent.guard, inserts=idempotent.stored(answer))
            if written.has_change:
                return answer
            if not written.has_guard:
                raise KeyTaken
    except KeyTaken:
        return idempotent.first_answer()
    raise RuntimeError(f"the locked order {order_id} was changed by another session")


@contextlib.contextmanager
def _locked(order_id: uuid.UUID | None) -> Iterator[None]:
    with transaction.atomic(durable=True):
        if order_id is not None:
            with contextlib.suppress(Order.DoesNotExist):  # `decide` reports it
                Order.objects.lock(order_id=order_id)
        yield
