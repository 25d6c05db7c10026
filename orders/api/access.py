"""The orders that a request's token can see: those of the shops to which it is bound."""

from __future__ import annotations

import uuid
from typing import Any

from orders.models import Order
from web.api.problems import not_found
from web.api.views import NO_SUCH_ID, path_id
from web.models import ApiToken


def find_order(id: str, token: ApiToken, **annotations: Any) -> Order:
    """Return the order with the id in a path. Raise the 404 problem if the token sees no such order."""
    rows = Order.objects.filter(id=path_id(id)).annotate(**annotations)
    order = token.binding.only(rows).first()
    if order is None:
        raise not_found(NO_SUCH_ID)
    return order


def find_order_id(id: str, token: ApiToken) -> uuid.UUID:
    """Return the id in a path, if the order exists. Raise the same problem."""
    order_id = path_id(id)
    if not token.binding.only(Order.objects.filter(id=order_id)).exists():
        raise not_found(NO_SUCH_ID)
    return order_id
