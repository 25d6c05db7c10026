"""Find orders for the admin's search box and their list."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Q
from django.http import HttpRequest
from django.urls import reverse

from orders.models import NEWEST_FIRST, Order
from runtime.binding import Binding
from runtime.database.beginnings import beginning_with
from web.admin.base import pill
from web.admin.rights import shops_of
from web.admin.search import SHOWN, Hit, Term, searches


def orders_of(term: Term, shops: Binding) -> Q:
    """Return the condition of the shops' orders that a search finds, by indexes."""
    if term.address:
        return Q(email__iexact=term.address)
    if term.id:
        return Q(id=term.id)
    addressed = beginning_with(
        [term.address_begins],
        table="orders",
        column="email",
        newest_first="created_at DESC, id DESC",
        shops=shops,
    )
    return Q(id__in=[*Order.objects.named(term.text, shops=shops), *(id for id, _ in addressed)])


@searches(10)
def orders(request: HttpRequest, term: Term) -> Iterator[Hit]:
    """Find orders by address, id, reference or correlation id. One statement uses an index for each."""
    if not request.user.has_perm("orders.view_order"):
        return
    shops = shops_of(request)
    rows = Order.objects.filter(orders_of(term, shops) | Q(correlation_id=term.text))
    for order in shops.only(rows).order_by(*NEWEST_FIRST)[:SHOWN]:
        yield Hit(
            key=f"order {order.id}",
            kind="order",
            title=f"{order.reference or order.id} of {order.email}",
            reference=order.reference,
            at=order.created_at,
            state=pill(order.status),
            url=reverse("admin:orders_order_change", args=[order.id]),
        )
