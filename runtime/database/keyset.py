"""Keyset pagination: the rows after a position in a sorted list.

An index with the columns of the order, in their order, finds the position without reading the rows before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from django.db.models import Model, QuerySet

Row = TypeVar("Row", bound=Model)


def read_page(
    *, rows: QuerySet[Row], order: Sequence[str], after: Sequence[object] | None, size: int
) -> list[Row]:
    """Return the first `size` rows in an order, or the first ones `after` the values of its columns.

    `order` is as for `order_by`. Its columns are unique together, never NULL, and all ascending or all
    descending.
    """
    if after is None:
        return list(rows.order_by(*order)[:size])
    names, comparison = columns_of(order), "lt" if order[0].startswith("-") else "gt"
    page: list[Row] = []
    # First come the rows that share all columns but the last with the position. A comparison of all columns,
    # (a, b) < (x, y), would need only one statement. But if the statement also has a period, PostgreSQL 18
    # scans the index from the period's end and not from the position.
    for place in reversed(range(len(names))):
        if len(page) < size:
            shared = dict(zip(names[:place], after, strict=False))
            following = rows.filter(**shared, **{f"{names[place]}__{comparison}": after[place]})
            page += following.order_by(*order)[: size - len(page)]
    return page


def columns_of(order: Sequence[str]) -> list[str]:
    return [name.removeprefix("-") for name in order]
