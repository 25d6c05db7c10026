"""Find the order that a person names in a command."""

from __future__ import annotations

from django.core.management.base import CommandError

from orders.models import Order
from outbox.api.fields import parse_uuid


def find_order(text: str) -> Order | None:
    """Return the order with this id or this reference, or None.

    Raise `CommandError` if several orders have the reference.
    """
    id = parse_uuid(text)
    found = list(Order.objects.filter(id=id) if id else Order.objects.filter(reference=text)[:2])
    if len(found) > 1:
        raise CommandError(f"Several orders have the reference {text}. Give an order's id.")
    return found[0] if found else None
