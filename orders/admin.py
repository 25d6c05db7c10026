"""Orders to look at, with their e-mails and events. Only the API and events change them."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from notifications.rendering import format_amount
from orders.models import Order
from outbox.models import OutboxEvent
from outbox.triage import AgeFilter, ChoiceFilter, TriageAdmin, ago, as_uuid, pill

SHOWN = 100


class StatusFilter(ChoiceFilter):
    """By status."""

    title, parameter_name = "status", "status"

    def choices_of(self) -> Iterable[str]:
        """All of them."""
        return Order.Status.values


@admin.register(Order)
class OrderAdmin(TriageAdmin[Order]):
    """The list, and one order's story."""

    list_display = ["shown", "state", "total", "refunded", "email", "created"]
    list_filter = [StatusFilter, AgeFilter]
    search_fields = ["reference"]
    search_help_text = "An order's reference or id, or an exact address."
    fieldsets = [
        ("Order", {"fields": ["id", "reference", "state", "version", "total", "refunded", "item_table"]}),
        ("Customer", {"fields": ["user_id", "name", "email", "locale"]}),
        ("E-mails", {"fields": ["mails"]}),
        ("Domain events", {"fields": ["events"]}),
        (
            "Times",
            {
                "fields": [
                    "created_at",
                    "updated_at",
                    "paid_at",
                    "stock_reserved_at",
                    "completed_at",
                    "correlation_id",
                ]
            },
        ),
    ]

    @admin.display(description="order")
    def shown(self, order: Order) -> str:
        """Its reference, or the end of its id."""
        return order.reference or f"…{str(order.id)[-8:]}"

    @admin.display(description="status")
    def state(self, order: Order) -> SafeString:
        """A pill."""
        return pill(order.status)

    @admin.display(description="total")
    def total(self, order: Order) -> str:
        """In its currency."""
        return format_amount(amount=order.total_amount, currency=order.currency, locale="en")

    @admin.display(description="refunded")
    def refunded(self, order: Order) -> str:
        """In its currency."""
        if not order.refunded_amount:
            return "–"
        return format_amount(amount=order.refunded_amount, currency=order.currency, locale="en")

    @admin.display(description="created")
    def created(self, order: Order) -> SafeString | str:
        """Relative."""
        return ago(order.created_at)

    @admin.display(description="items")
    def item_table(self, order: Order) -> SafeString | str:
        """One line for each."""
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

    @admin.display(description="e-mails")
    def mails(self, order: Order) -> SafeString | str:
        """Newest first, linked."""
        mails = order.notifications.order_by("-id").only("id", "event_type", "status", "created_at")[:SHOWN]
        return (
            format_html_join(
                "",
                '{} <a href="{}">{}</a> {}<br>',
                (
                    (
                        pill(mail.status),
                        reverse("admin:notifications_emailnotification_change", args=[mail.id]),
                        mail.event_type,
                        ago(mail.created_at),
                    )
                    for mail in mails
                ),
            )
            or "none"
        )

    @admin.display(description="domain events")
    def events(self, order: Order) -> SafeString | str:
        """Oldest first, linked."""
        events = OutboxEvent.objects.filter(aggregate_id=order.id).order_by("sequence")[:SHOWN]
        return (
            format_html_join(
                "",
                '#{} <a href="{}">{}</a> {}<br>',
                (
                    (
                        event.sequence,
                        reverse("admin:outbox_outboxevent_change", args=[event.id]),
                        event.event_type,
                        ago(event.created_at),
                    )
                    for event in events
                ),
            )
            or "none"
        )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Order], search_term: str
    ) -> tuple[QuerySet[Order], bool]:
        """The term's form says which column is meant; each has an index."""
        if not (text := search_term.strip()):
            return queryset, False
        if "@" in text:
            return queryset.filter(email__iexact=text), False
        if wanted := as_uuid(text):
            return queryset.filter(id=wanted), False
        return queryset.filter(reference=text), False
