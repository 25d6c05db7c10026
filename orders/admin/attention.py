"""The first page's tile about stuck orders."""

from __future__ import annotations

from collections.abc import Iterator

from django.http import HttpRequest
from django.urls import reverse

from orders.conditions import ORDERS_STUCK
from web.admin.rights import shops_of
from web.admin.tiles import FrontPage, Tile, attention


@attention(5)
def stuck_orders(request: HttpRequest) -> Iterator[Tile]:
    """Show a tile for each state in which orders are stuck, or one that says that none is."""
    # Orders of other systems are in no such state.
    if not (request.user.has_perm("orders.view_order") and shops_of(request).has("")):
        return
    page = reverse("admin:orders_order_changelist")
    active = FrontPage.of(request).active(ORDERS_STUCK)
    help = "Somebody is owed money or an answer. The page of each order shows its timeline."
    for condition in active:
        label = f"stuck orders: {condition.subject}"
        yield Tile(label=label, url=f"{page}?stuck={condition.subject}", conditions=[condition], help=help)
    if not active:
        yield Tile(label="stuck orders", url=page, help=help)
