"""The shops to which a user of the admin, an API token or a job is bound: the one place that decides.

A shop is the `source` of its orders. A model says in `in_shops` which of its rows belong to some sources. A
model that does not say it has no row for a bound caller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable
from typing import Any, TypeVar

from django.db.models import Q, QuerySet

from runtime.names import ALL, OWN

Rows = TypeVar("Rows", bound=QuerySet[Any, Any])


@dataclasses.dataclass(frozen=True, slots=True)
class Binding:
    """The `sources` that a caller may see, with "" for own orders. None is unbound: all of them."""

    sources: frozenset[str] | None = frozenset()

    @classmethod
    def of_words(cls, words: Iterable[str] | None) -> Binding:
        """Read a stored binding. None is unbound."""
        if words is None or ALL in (words := list(words)):
            return UNBOUND
        return cls(frozenset("" if word == OWN else word for word in words))

    @property
    def words(self) -> list[str]:
        """Return the binding as it is stored."""
        if self.sources is None:
            return [ALL]
        return sorted(source or OWN for source in self.sources)

    @property
    def is_unbound(self) -> bool:
        return self.sources is None

    def has(self, source: str | None) -> bool:
        """Return whether a row of this source may be seen. None is the source of a row of no one shop."""
        return self.sources is None or source in self.sources

    def covers(self, other: Binding) -> bool:
        """Return whether nobody with `other` may see more."""
        if self.sources is None:
            return True
        return other.sources is not None and other.sources <= self.sources

    def only(self, rows: Rows) -> Rows:
        """Filter the rows of these shops."""
        if self.sources is None:
            return rows
        in_shops: Callable[[Collection[str]], Q] | None = getattr(rows.model, "in_shops", None)
        return rows.none() if in_shops is None else rows.filter(in_shops(sorted(self.sources)))

    def __str__(self) -> str:
        if self.sources is None:
            return "all shops"
        return ", ".join(self.words) or "no shop"


UNBOUND = Binding(None)


def by_source(sources: Collection[str]) -> Q:
    """Be the `in_shops` of a model with the column `source`."""
    return Q(source__in=sources)


_order_ids: list[Callable[[Collection[str]], QuerySet[Any, Any]]] = []


def register_order_ids(read: Callable[[Collection[str]], QuerySet[Any, Any]]) -> None:
    """Register what makes the query of the ids of some sources' orders."""
    _order_ids[:] = [read]


def by_order(sources: Collection[str]) -> Q:
    """Be the `in_shops` of a model that only has an `order_id`."""
    return Q(order_id__in=_order_ids[0](sources))
