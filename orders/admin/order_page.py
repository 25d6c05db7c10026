"""The list of orders, and the page of one order with its timeline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from notifications.rendering import format_amount
from notifications.admin.timeline import lines_of
from orders.fields import ORDER_FIELDS, Use, names
from orders.models import NEWEST_FIRST, STUCK, Order
from orders.timeline import read_timeline
from runtime.addresses import as_stored
from runtime.database.ids import parse_uuid
from web.admin.base import AgeFilter, ChoiceFilter, ago, pill
from web.admin.period import PeriodFilter


class OrderStatusFilter(ChoiceFilter):
    title, parameter_name = "status", "status"

    def choices_of(self) -> Iterable[str]:
        return Order.Status.values


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


#: The columns that a method of `OrderPage` shows.
_SHOWN_BY = {
    "status": "state",
    "source": "owner",
    "total_amount": "total",
    "refunded_amount": "refunded",
    "items": "item_table",
}


def _fields_of(section: str) -> tuple[str, ...]:
    return tuple(_SHOWN_BY.get(field.name, field.name) for field in ORDER_FIELDS if field.section == section)


class OrderPage(admin.ModelAdmin[Order]):
    list_display = ["shown", "owner", "state", "total", "refunded", "email", "created"]
    list_filter = [OrderStatusFilter, StuckFilter, PlacedAge, PlacedPeriod]
    ordering = list(NEWEST_FIRST)
    csv_columns = names(Use.CSV)
    search_fields = ["reference"]
    search_help_text = "An order's reference or id, or an exact address."
    fieldsets = [
        ("Timeline", {"fields": ["timeline"]}),
        ("Order", {"fields": _fields_of("Order")}),
        ("Customer", {"fields": _fields_of("Customer")}),
        ("Times", {"fields": _fields_of("Times")}),
    ]

    @admin.display(description="order")
    def shown(self, order: Order) -> str:
        return order.reference or f"…{str(order.id)[-8:]}"

    @admin.display(description="owner")
    def owner(self, order: Order) -> str:
        return order.source or "this system"

    @admin.display(description="status")
    def state(self, order: Order) -> SafeString:
        return pill(order.status)

    @admin.display(description="total")
    def total(self, order: Order) -> str:
        return format_amount(amount=order.total_amount, currency=order.currency, locale="en")

    @admin.display(description="refunded")
    def refunded(self, order: Order) -> str:
        if not order.refunded_amount:
            return "–"
        return format_amount(amount=order.refunded_amount, currency=order.currency, locale="en")

    @admin.display(description="created")
    def created(self, order: Order) -> SafeString | str:
        return ago(order.created_at)

    @admin.display(description="items")
    def item_table(self, order: Order) -> SafeString | str:
        return (
            format_html_join(
                "",
                "{} × {} ({})<br>",
                (
                    (
                        item["quantity"],
                        item["name"],
                        format_amount(amount=item["unit_amount"], currency=order.currency, locale="en"),
                    )
                    for item in order.items
                ),
            )
            or "none"
        )

    @admin.display(description="")
    def timeline(self, order: Order) -> SafeString:
        return render_to_string(
            "admin/timeline.html",
            {"order": order, "lines": lines_of(read_timeline(order=order))},
        )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Order], search_term: str
    ) -> tuple[QuerySet[Order], bool]:
        """Search one indexed column: the address, the id or the reference, depending on the term's form."""
        if not (text := search_term.strip()):
            return queryset, False
        if "@" in text:
            return queryset.filter(email__iexact=as_stored(text)), False
        if wanted := parse_uuid(text):
            return queryset.filter(id=wanted), False
        return queryset.filter(reference=text), False
