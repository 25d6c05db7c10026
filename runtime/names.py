"""The words of bindings that no shop can have as its name."""

from __future__ import annotations

from collections.abc import Iterable

#: In a stored binding: all shops, and the orders that this system owns, whose `source` is empty.
ALL, OWN = "*", "own"
RESERVED = frozenset({ALL, OWN})


class Reserved(ValueError):
    """A shop has a word of bindings as its name."""


def refuse_reserved(names: Iterable[str]) -> None:
    """Raise `Reserved` if one of the names of shops is a word of bindings."""
    if reserved := sorted(RESERVED.intersection(names)):
        raise Reserved(
            f"No shop can be named {reserved[0]}: in the shops of a user, {OWN} means own orders, and {ALL}"
            " all shops. Choose another name."
        )
