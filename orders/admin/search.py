"""Find orders for the admin's search box."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Q
from django.http import HttpRequest
from django.urls import reverse

from orders.models import NEWEST_FIRST, Order
from runtime.addresses import as_stored
from runtime.database.ids import parse_uuid
from web.admin.search import SHOWN, Hit, searches


@searches(10)
def orders(request: HttpRequest, term: str) -> Iterator[Hit]:
    """Find orders by address, id, reference or correlation id. One statement uses an index for each."""
    if not request.user.has_perm("orders.view_order"):
        return
    named = Q(reference=term) | Q(correlation_id=term)
    if "@" in term:
        named |= Q(email__iexact=as_stored(term))
    if id := parse_uuid(term):
        named |= Q(id=id)
    for order in Order.objects.filter(named).order_by(*NEWEST_FIRST)[:SHOWN]:
        yield Hit(
            key=f"order {order.id}",
            kind="order",
            title=f"{order.reference or order.id} of {order.email}",
            detail=order.status.replace("_", " "),
            url=reverse("admin:orders_order_change", args=[order.id]),
        )
