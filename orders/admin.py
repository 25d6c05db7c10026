"""The admin of orders: read-only, with their e-mails and events, and the export and erasure of a person."""

from __future__ import annotations

from collections.abc import Iterable

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from notifications.rendering import format_amount
from orders import privacy
from orders.models import Order
from outbox.admin.base import AgeFilter, ChoiceFilter, TriageAdmin, ago, as_uuid, pill
from outbox.core.privacy import ERASED_ADDRESS
from outbox.models import OutboxEvent
from outbox.retention.locks import AlreadyRunning

SHOWN = 100  # e-mails and events on an order's page


class StatusFilter(ChoiceFilter):
    title, parameter_name = "status", "status"

    def choices_of(self) -> Iterable[str]:
        return Order.Status.values


@admin.register(Order)
class OrderAdmin(TriageAdmin[Order]):
    list_display = ["shown", "state", "total", "refunded", "email", "created"]
    list_filter = [StatusFilter, AgeFilter]
    search_fields = ["reference"]
    actions = ["export_person", "erase_person"]
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
        return order.reference or f"…{str(order.id)[-8:]}"

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

    @admin.display(description="e-mails")
    def mails(self, order: Order) -> SafeString | str:
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

    def has_export_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("orders.export_person")

    def has_erase_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("orders.erase_person")

    @admin.action(description="Export all that is stored of this customer", permissions=["export"])
    def export_person(self, request: HttpRequest, queryset: QuerySet[Order]) -> HttpResponse | None:
        """Answer one customer's data as a JSON file, archives included."""
        if (email := self._one_address(request, queryset)) is None:
            return None
        document = privacy.export_person(email=email, report=lambda step, **facts: None)
        self._note(request, queryset, "Exported the customer's data.")
        return JsonResponse(
            document,
            json_dumps_params={"indent": 2, "ensure_ascii": False},
            headers={"Content-Disposition": 'attachment; filename="customer.json"'},
        )

    @admin.action(description="Erase this customer's data", permissions=["erase"])
    def erase_person(self, request: HttpRequest, queryset: QuerySet[Order]) -> HttpResponse | None:
        if (email := self._one_address(request, queryset)) is None:
            return None
        if "confirmed" not in request.POST:
            context = {
                **self.admin_site.each_context(request),
                "title": "Erase a customer's data",
                "opts": self.opts,
                "email": email,
                "orders": Order.objects.filter(email__iexact=email).count(),
                "selected": request.POST.getlist(ACTION_CHECKBOX_NAME)[:1],
                "checkbox": ACTION_CHECKBOX_NAME,
                "media": self.media,
            }
            return TemplateResponse(request, "admin/orders/order/erase.html", context)
        try:
            done = privacy.erase_person(
                email=email, force="force" in request.POST, report=lambda step, **facts: None
            )
        except (privacy.InFlight, privacy.StillSending, AlreadyRunning) as error:
            self.message_user(request, str(error), messages.ERROR)
            return None
        self._note(request, queryset, "Erased the customer's data.")
        changed = ", ".join(f"{count} in {table}" for table, count in done.counts.items() if count)
        left = f" Archives to be rewritten next month: {', '.join(done.archives)}." if done.archives else ""
        self.message_user(request, f"Erased: {changed or 'nothing was left'}.{left}")
        return None

    def _one_address(self, request: HttpRequest, queryset: QuerySet[Order]) -> str | None:
        addresses = {email.lower() for email in queryset.order_by().values_list("email", flat=True)[:1000]}
        if len(addresses) == 1 and ERASED_ADDRESS not in addresses:
            return addresses.pop()
        text = "Select orders of one customer." if len(addresses) > 1 else "This customer is erased already."
        self.message_user(request, text, messages.WARNING)
        return None

    def _note(self, request: HttpRequest, queryset: QuerySet[Order], text: str) -> None:
        for order in queryset.order_by("id")[:1]:
            self.log_change(request, order, text)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Order], search_term: str
    ) -> tuple[QuerySet[Order], bool]:
        """Search one indexed column, chosen by the form of the term: address, id or reference."""
        if not (text := search_term.strip()):
            return queryset, False
        if "@" in text:
            return queryset.filter(email__iexact=text), False
        if wanted := as_uuid(text):
            return queryset.filter(id=wanted), False
        return queryset.filter(reference=text), False
