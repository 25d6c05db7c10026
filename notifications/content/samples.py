"""The data with which previews show e-mails. The app that has orders registers it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

_kinds: list[Mapping[str, object]] = []
_order_for: list[Callable[[str], Mapping[str, object]]] = []


def register_samples(
    kinds: Sequence[Mapping[str, object]], *, order_for: Callable[[str], Mapping[str, object]]
) -> None:
    """Register orders of every kind, and what makes the variables of a sample order that fits an event.

    The first kind has every variable with a value.
    """
    _kinds[:], _order_for[:] = kinds, [order_for]


def kinds() -> Sequence[Mapping[str, object]]:
    return tuple(_kinds)


def order_for(event_type: str) -> Mapping[str, object]:
    """Return the variables of a sample order that fits an event."""
    return _order_for[0](event_type)
