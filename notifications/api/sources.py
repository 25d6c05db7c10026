"""Tokens that are bound to a source: they see the orders and e-mails of one system only.

orders.apps registers how the orders of a source are found, because the tables of other apps only have their
ids. Called by the views.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.db.models import Model, QuerySet

from web.models import ApiToken

Row = TypeVar("Row", bound=Model)

_ids_of: list[Callable[[str], QuerySet[Any, Any]]] = []


def register(ids_of: Callable[[str], QuerySet[Any, Any]]) -> None:
    """Register the function that returns a query of the ids of a source's orders."""
    _ids_of[:] = [ids_of]


def visible(rows: QuerySet[Row], token: ApiToken) -> QuerySet[Row]:
    """Filter the rows, by their `order_id`, that a token can see."""
    return rows.filter(order_id__in=_ids_of[0](token.source)) if token.source else rows
