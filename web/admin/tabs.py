"""Filters by a state, as tabs above a list that say how many rows each state has.

A count must not read a big table, so each reads rows that an index finds, and stops at `MOST`. With another
filter or a search the tabs have no numbers: no index finds those rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from runtime.binding import Binding
from runtime.database import replica
from web.admin.base import ChoiceFilter
from web.admin.rights import shops_of

#: So many rows are counted at most.
MOST = 1_000


class StateRows(NamedTuple):
    """Rows with these `states`, of which a query returns the states. An index finds them."""

    states: Collection[str]
    rows: QuerySet[Any, Any]


class TabFilter(ChoiceFilter):
    """A filter by a state."""

    is_tabs = True

    def __init__(self, request: HttpRequest, params: Any, model: type[Model], model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        self.request, self.page = request, model_admin

    def counted(self, rows: QuerySet[Any], shops: Binding) -> Iterable[StateRows]:
        """Return the rows to count for a user who is bound to some shops, whose rows are `rows`."""
        return ()

    def choices(self, changelist: Any) -> Iterator[Any]:
        numbers = self._count()
        values = [None, *(value for value, _ in self.lookup_choices)]
        for choice, value in zip(super().choices(changelist), values, strict=True):
            yield {**choice, "number": numbers.get(value)}

    def _count(self) -> dict[Any, str]:
        if {name for name, value in self.request.GET.items() if value} - {self.parameter_name, "p", "o"}:
            return {}
        rows = self.page.in_shops(self.request, self.page.model._default_manager.all())
        return count_states(self.counted(rows, shops_of(self.request)))


def count_states(counted: Iterable[StateRows]) -> dict[Any, str]:
    """Count each state, in one statement. One that may have more rows than were read has a plus."""
    counts: list[str] = []
    values: list[Any] = []
    groups = list(counted)
    for number, group in enumerate(groups):
        try:
            sql, params = group.rows.order_by()[: MOST + 1].query.sql_with_params()
        except EmptyResultSet:  # of a user who is bound to no shop
            continue
        counts.append(f"SELECT {number}, state, count(*) FROM ({sql}) AS few (state) GROUP BY state")  # noqa: S608
        values += params
    read: dict[tuple[int, str], int] = {}
    if counts:
        with connections[replica.alias()].cursor() as cursor:
            cursor.execute(" UNION ALL ".join(counts), values)
            read = {(number, state): count for number, state, count in cursor.fetchall()}
    said: dict[Any, str] = {}
    for number, group in enumerate(groups):
        is_cut = sum(count for (of, _), count in read.items() if of == number) > MOST
        for state in group.states:
            count = min(read.get((number, state), 0), MOST)
            if count or not is_cut:
                said[state] = f"{count:,}{'+' * is_cut}"
    return said
