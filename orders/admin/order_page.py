"""The list of orders, and the page of one order: its e-mails, its timeline, its fields."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from notifications.admin.email_detail import REFRESH_SECONDS
from notifications.admin.email_list import ShopFilter, with_sender
from notifications.admin.email_state import WAITING, EmailState, explain_several, read_states
from notifications.admin.timeline import lines_of
from notifications.content.rendering import format_amount
from notifications.models import OWN_ORDERS, EmailNotification
from orders.admin.addresses import may_correct
from orders.admin.search import orders_of
from orders.breakdown import Row, break_down
from orders.fields import DETAIL_NAMES, ORDER_FIELDS
from orders.models import NEWEST_FIRST, STUCK, Order, UnexpectedPayment
from orders.parcels import count_left, read_shipments
from orders.timeline import name_lines, read_timeline, say_money
from runtime.binding import Binding
from runtime.database.clock import read_database_time
from web.admin.base import AgeFilter, ChoiceFilter, RefreshedPage, pill, show_time
from web.admin.period import PeriodFilter
from web.admin.rights import shops_of
from web.admin.search import HELP, Term
from web.admin.tabs import StateRows, TabFilter


class OrderStatusFilter(TabFilter):
    title, parameter_name = "state", "status"

    def choices_of(self) -> Iterable[str]:
        return Order.Status.values

    def counted(self, rows: QuerySet[Any], shops: Binding) -> Iterable[StateRows]:
        """Return each status, which has an index, also that of a shop, but not that of own orders alone."""
        if not shops.is_unbound and shops.has(""):
            return ()
        statuses: list[str] = Order.Status.values
        return (StateRows([status], rows.filter(status=status).values_list("status")) for status in statuses)


class FulfilmentFilter(ChoiceFilter):
    """Filters by what left in parcels, without *none*, which may be nearly all orders."""

    title, parameter_name = "shipped", "fulfilment"

    def choices_of(self) -> Iterable[str]:
        return [value for value in Order.Fulfilment.values if value != Order.Fulfilment.NONE]


class OrderShopFilter(ShopFilter):
    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        shop = self.value()
        return queryset if shop is None else queryset.filter(source="" if shop == OWN_ORDERS else shop)


class StuckFilter(ChoiceFilter):
    title, parameter_name = "stuck", "stuck"

    def choices_of(self) -> Iterable[str]:
        return STUCK

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        state = self.value()
        if state not in STUCK:
            return queryset
        # A subquery: other filters made `queryset`, and a plan by time would read every order.
        return queryset.filter(id__in=Order.objects.stuck(state).values("id"))


class PlacedAge(AgeFilter):
    column = "created_at"  # other systems choose the ids of their orders


class PlacedPeriod(PeriodFilter):
    column = "created_at"


#: An order's page shows at most so many e-mails.
MOST_EMAILS = 50
#: The columns that a method of `OrderPage` shows.
_SHOWN_BY = {
    "status": "state",
    "fulfilment": "shipped",
    "source": "owner",
    "total_amount": "total",
    "refunded_amount": "refunded",
    "items": "parts",
    "details": "detail_list",
}


def _fields_of(section: str) -> tuple[str, ...]:
    return tuple(_SHOWN_BY.get(field.name, field.name) for field in ORDER_FIELDS if field.section == section)


def _name(row: Row) -> str:
    """Return what the page calls a row, such as "Shipping (DHL)"."""
    word = row.kind.replace("_", " ").capitalize()
    return f"{word} ({row.label})" if row.label else word


def _emails(request: HttpRequest, order: Order) -> list[EmailState]:
    """Return the states of the order's newest e-mails that are not archived, the newest first."""
    rows = with_sender(EmailNotification.objects.filter(order_id=order.id)).defer("body", "body_text")
    emails = list(shops_of(request).only(rows).order_by("-id")[:MOST_EMAILS])
    return read_states(request, emails, now=read_database_time(), siblings=emails) if emails else []


def _read_emails(request: HttpRequest, order: Order) -> dict[str, Any]:
    """Return what the refreshed part of the page shows."""
    may_view = request.user.has_perm("notifications.view_emailnotification")
    emails = _emails(request, order) if may_view else []
    return {
        "original": order,
        "may_view_emails": may_view,
        "emails": emails,
        "why_several": explain_several([state.email for state in emails]),
        "is_waiting": any(state.email.status in WAITING for state in emails),
        "needs_address": any(state.resend and state.is_copy_better for state in emails),
        "may_correct": may_correct(request, order),
        "payments": _owed_payments(order),
    }


def _parcels(order: Order) -> dict[str, Any]:
    """Return the order's parcels, newest first, and what is left if some of it left."""
    shipments = read_shipments(order)
    left = count_left(order, shipments)
    lines = [{"item": item, "quantity": quantity} for item, quantity in enumerate(left) if quantity]
    is_open = order.fulfilment == Order.Fulfilment.PART_SHIPPED
    return {
        "parcels": [
            {
                "row": shipment,
                "name": shipment.tracking_number or shipment.reference or f"…{str(shipment.id)[-8:]}",
                "items": name_lines(order, shipment.lines),
                "times": [
                    (word, show_time(at))
                    for word, at in (
                        ("left", shipment.shipped_at),
                        ("delivered", shipment.delivered_at),
                        ("came back", shipment.returned_at),
                        ("waits for the payment since", shipment.untold_since),
                    )
                    if at
                ],
            }
            for shipment in reversed(shipments)
        ],
        "left": name_lines(order, lines) if is_open else "",
    }


def _owed_payments(order: Order) -> list[dict[str, Any]]:
    """Return the payments that must be returned, oldest first."""
    if order.unexpected_payment_at is None:
        return []
    rows = UnexpectedPayment.objects.filter(order_id=order.id, returned_at=None).order_by("at", "id")
    return [{"id": row.id, "money": say_money(order, row.amount)} for row in rows]


class OrderPage(RefreshedPage[Order]):
    part_template = "admin/orders/order/_emails.html"
    list_display = ["shown", "owner", "state", "shipped", "total", "refunded", "email", "created"]
    list_filter = [OrderStatusFilter, FulfilmentFilter, OrderShopFilter, StuckFilter, PlacedAge, PlacedPeriod]
    ordering = list(NEWEST_FIRST)
    csv_columns = tuple(field.name for field in ORDER_FIELDS if field.in_csv)
    search_fields = ["reference"]
    search_help_text = HELP
    fieldsets = [
        ("Order", {"fields": _fields_of("Order")}),
        ("Customer", {"fields": _fields_of("Customer")}),
        ("Times", {"fields": _fields_of("Times")}),
    ]

    @admin.display(description="order")
    def shown(self, order: Order) -> str:
        return order.reference or f"…{str(order.id)[-8:]}"

    @admin.display(description="shop")
    def owner(self, order: Order) -> str:
        return order.source or OWN_ORDERS

    @admin.display(description="state")
    def state(self, order: Order) -> SafeString:
        return pill(order.status)

    @admin.display(description="shipped")
    def shipped(self, order: Order) -> SafeString | str:
        return "–" if order.fulfilment == Order.Fulfilment.NONE else pill(order.fulfilment)

    @admin.display(description="total")
    def total(self, order: Order) -> str:
        return format_amount(amount=order.total_amount, currency=order.currency, locale="en")

    @admin.display(description="refunded")
    def refunded(self, order: Order) -> str:
        if not order.refunded_amount:
            return "–"
        return format_amount(amount=order.refunded_amount, currency=order.currency, locale="en")

    @admin.display(description="placed")
    def created(self, order: Order) -> SafeString | str:
        return show_time(order.created_at)

    @admin.display(description="items and charges")
    def parts(self, order: Order) -> SafeString | str:
        """Show all lines, and the rows that e-mails show between them and the total."""
        parts = break_down(
            items=order.items, charges=order.charges, total=order.total_amount, most=len(order.items)
        )
        rows = [
            *((f"{line.quantity} × {line.name}", line.amount) for line in parts.lines),
            *((_name(row), row.amount) for row in parts.rows),
            *((f"includes {row.label or 'tax'}", row.amount) for row in parts.included),
        ]
        shown = (
            (name, format_amount(amount=amount, currency=order.currency, locale="en"))
            for name, amount in rows
        )
        return format_html_join("", "{}: {}<br>", shown) or "none"

    @admin.display(description="details")
    def detail_list(self, order: Order) -> SafeString | str:
        details = ((name, order.details.get(name)) for name in DETAIL_NAMES)
        lines = (
            (name.replace("_", " ").capitalize(), line if isinstance(line, str) else ", ".join(line))
            for name, line in details
            if line
        )
        return format_html_join("", "{}: {}<br>", lines) or "none"

    def read_part(self, request: HttpRequest, order: Order) -> dict[str, Any]:
        return _read_emails(request, order)

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: Order | None = None,
    ) -> HttpResponse:
        """Add the order's e-mails with what to do about each, and its timeline."""
        if obj is not None:
            context |= {
                "title": f"Order {self.shown(obj)}",
                "subtitle": None,
                "refresh_seconds": REFRESH_SECONDS,
                **_read_emails(request, obj),
                **_parcels(obj),
                "lines": lines_of(
                    read_timeline(order=obj, shops=shops_of(request)),
                    may_open_events=request.user.has_perm("events.view_domainevent"),
                ),
            }
        return super().render_change_form(request, context, add, change, form_url, obj)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Order], search_term: str
    ) -> tuple[QuerySet[Order], bool]:
        term = Term.of(search_term)
        return queryset.filter(orders_of(request, term)) if term.text else queryset, False
