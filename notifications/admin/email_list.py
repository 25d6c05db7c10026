"""The list of e-mails: columns, filters and search."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from django.conf import settings
from django.contrib import admin
from django.contrib.admin.templatetags.admin_urls import admin_urlname
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from notifications import filters
from notifications.models import LAST_ERROR_AT, EmailNotification, EmailNotificationQuerySet
from notifications.states.transitions import DUE_STATES, LABELS, Status
from notifications.template_files import event_types
from runtime.addresses import as_stored
from runtime.database.ids import parse_uuid
from web.admin.base import AgeFilter, ChoiceFilter, ChosenFilter, ago, pill
from web.admin.period import PeriodFilter


class ParameterFilter(ChoiceFilter):
    """A filter that notifications.filters applies: a bulk job selects the same rows."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        params = {str(self.parameter_name): self.value() or ""}
        return filters.narrow(cast(EmailNotificationQuerySet, queryset), params)


class EmailStatusFilter(ParameterFilter):
    title, parameter_name = "status", "status"

    def choices_of(self) -> Iterable[str]:
        return LABELS


class CauseFilter(ParameterFilter):
    """One group of the page of causes. Shown only if the URL has one."""

    title, parameter_name = "cause", "cause"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        chosen = request.GET.get("cause", "")
        return [(chosen, f"dead letters of cause {chosen[:6]}…")] if chosen else []


class EventFilter(ParameterFilter):
    title, parameter_name = "event", "event_type"

    def choices_of(self) -> Iterable[str]:
        return sorted(event_types())


class ProviderFilter(ParameterFilter):
    title, parameter_name = "provider", "provider"

    def choices_of(self) -> Iterable[str]:
        return settings.EMAIL_PROVIDERS


class FailingFilter(ParameterFilter):
    title, parameter_name = "trouble", "failing"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("hour", "failing for an hour")]


class ListPage(admin.ModelAdmin[EmailNotification]):
    list_display = [
        "state",
        "event",
        "recipient_email",
        "order_link",
        "tries",
        "error",
        "created",
        "next_try",
    ]
    list_display_links = ["state", "event"]
    list_filter = [
        EmailStatusFilter,
        CauseFilter,
        ChosenFilter,
        FailingFilter,
        EventFilter,
        ProviderFilter,
        AgeFilter,
        PeriodFilter,
    ]
    csv_columns: tuple[str, ...] = (
        "id",
        "order_id",
        "event_type",
        "status",
        "recipient_email",
        "provider",
        "provider_message_id",
        "retry_count",
        "last_error",
        "correlation_id",
        "created_at",
        "sent_at",
        "delivered_at",
        "bounced_at",
        "profile",
        "shop_copy_of",
    )
    search_fields = ["recipient_email"]
    search_help_text = "A whole address, an order's or notification's id, or an order's reference."

    @admin.display(description="status")
    def state(self, email: EmailNotification) -> SafeString:
        shown = LABELS.get(
            email.status
        )  # a newer release may have written a state that this one does not know
        return pill(shown.color if shown else email.status, email.status.replace("_", " "))

    @admin.display(description="event type", ordering="event_type")
    def event(self, email: EmailNotification) -> str:
        return f"{email.event_type} (shop copy)" if email.shop_copy_of else email.event_type

    @admin.display(description="order")
    def order_link(self, email: EmailNotification) -> SafeString:
        # An id begins with its time, and only its end distinguishes two orders of the same moment.
        order = EmailNotification._meta.get_field("order").related_model
        url = reverse(admin_urlname(order._meta, SafeString("change")), args=[email.order_id])
        return format_html('<a href="{}" title="{}">…{}</a>', url, email.order_id, str(email.order_id)[-8:])

    @admin.display(description="retries")
    def tries(self, email: EmailNotification) -> str:
        return f"{email.retry_count} of {email.max_retries}"

    @admin.display(description="last error")
    def error(self, email: EmailNotification) -> SafeString | str:
        text = email.last_error
        return format_html('<span title="{}">{}…</span>', text, text[:60]) if len(text) > 60 else text or "–"

    @admin.display(description="created")
    def created(self, email: EmailNotification) -> SafeString | str:
        return ago(email.created_at)

    @admin.display(description="next attempt")
    def next_try(self, email: EmailNotification) -> SafeString | str:
        return ago(email.next_attempt_at) if email.status in DUE_STATES else "–"

    @admin.display(description="failed")
    def failed(self, email: EmailNotification) -> SafeString | str:
        return ago(email.failed_at)

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """In a list of dead letters, show when each failed. None has a next attempt."""
        if request.GET.get("status") != Status.DEAD_LETTERED and "cause" not in request.GET:
            return self.list_display
        return ["failed" if name == "next_try" else name for name in self.list_display]

    def get_queryset(self, request: HttpRequest) -> QuerySet[EmailNotification]:
        """Load bodies and errors only for the page of one e-mail."""
        rows = super().get_queryset(request)
        is_detail = request.resolver_match is not None and str(request.resolver_match.url_name).endswith(
            "_change"
        )
        if is_detail or "failed" in self.get_list_display(request):
            rows = rows.annotate(last_error_at=LAST_ERROR_AT)
        return rows if is_detail else rows.defer("body", "body_text", "errors")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[EmailNotification], search_term: str
    ) -> tuple[QuerySet[EmailNotification], bool]:
        """Search an indexed column, chosen by the form of the term: address, id or reference."""
        if not (text := search_term.strip()):
            return queryset, False
        if "@" in text:
            return queryset.filter(recipient_email__iexact=as_stored(text)), False
        if wanted := parse_uuid(text):
            if queryset.filter(id=wanted).exists():
                return queryset.filter(id=wanted), False
            return queryset.filter(order_id=wanted), False
        orders = EmailNotification._meta.get_field("order").related_model
        assert isinstance(orders, type)
        named = orders._default_manager.filter(reference=text).order_by("-created_at", "-id")
        return queryset.filter(order_id__in=list(named.values_list("id", flat=True)[:100])), False
