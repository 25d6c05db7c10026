"""Find orders for the admin's search box and their list."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Q
from django.http import HttpRequest
from django.urls import reverse

from orders.models import NEWEST_FIRST, Order
from web.admin.base import pill
from web.admin.rights import shops_of
from web.admin.search import SHOWN, Hit, Term, note_cut, searches


def orders_of(request: HttpRequest, term: Term) -> Q:
    """Return the condition of the shops' orders that a search finds, and note whether more match."""
    if term.address:
        return Q(email__iexact=term.address)
    if term.id:
        return Q(id=term.id)
    hits = Order.objects.search(term.text, shops=shops_of(request))
    if hits.is_cut:
        note_cut(request)
    return Q(id__in=hits.ids)


@searches(10)
def orders(request: HttpRequest, term: Term) -> Iterator[Hit]:
    """Find orders by what `orders_of` searches, or by correlation id. Each statement uses an index."""
    if not request.user.has_perm("orders.view_order"):
        return
    shops = shops_of(request)
    rows = Order.objects.filter(orders_of(request, term) | Q(correlation_id=term.text))
    for order in shops.only(rows).order_by(*NEWEST_FIRST)[: SHOWN + 1]:
        yield Hit(
            key=f"order {order.id}",
            kind="order",
            title=f"{order.reference or order.id} of {', '.join(filter(None, (order.name, order.email)))}",
            reference=order.reference,
            at=order.created_at,
            state=pill(order.status),
            url=reverse("admin:orders_order_change", args=[order.id]),
        )
