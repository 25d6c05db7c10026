"""The list of e-mails: columns, filters, search, and the tiles above the list."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from django.conf import settings
from django.contrib import admin
from django.db.models import F, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from notifications import filters
from notifications.admin.attention import provider_conditions
from notifications.delivery.process import gate
from notifications.models import LAST_ERROR_AT, EmailNotification, EmailNotificationQuerySet
from notifications.rendering import event_types
from outbox.addresses import as_stored
from outbox.admin.front import bounded, count_each
from outbox.admin.shared.base import AgeFilter, ChoiceFilter, ago, as_uuid, pill
from outbox.admin.shared.period import PeriodFilter
from outbox.conditions import Facts, Rows, decide
from outbox.delivery.gate.breaker import State
from outbox.delivery.rows.outcomes import Status
from outbox.models import Heartbeat


class ParameterFilter(ChoiceFilter):
    """A filter that notifications.filters applies, so that bulk jobs select the same rows."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        params = {str(self.parameter_name): self.value() or ""}
        return filters.narrow(cast(EmailNotificationQuerySet, queryset), params)


class StatusFilter(ParameterFilter):
    title, parameter_name = "status", "status"

    def choices_of(self) -> Iterable[str]:
        # the most urgent first
        order = ("dead_lettered", "failed", "pending", "processing", "suppressed", "discarded", "sent")
        return [Status(value).value for value in order]


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
        "event_type",
        "recipient_email",
        "order_link",
        "tries",
        "error",
        "created",
        "next_try",
    ]
    list_display_links = ["state", "event_type"]
    list_filter = [
        StatusFilter,
        CauseFilter,
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
        "error_fingerprint",
        "correlation_id",
        "created_at",
        "sent_at",
        "delivered_at",
        "bounced_at",
    )
    search_fields = ["recipient_email"]
    search_help_text = "A whole address, an order's or notification's id, or an order's reference."

    @admin.display(description="status")
    def state(self, mail: EmailNotification) -> SafeString:
        return pill(mail.status)

    @admin.display(description="order")
    def order_link(self, mail: EmailNotification) -> SafeString:
        # An id begins with its time, so only its end distinguishes two orders of the same moment.
        url = reverse("admin:orders_order_change", args=[mail.order_id])
        return format_html('<a href="{}" title="{}">…{}</a>', url, mail.order_id, str(mail.order_id)[-8:])

    @admin.display(description="retries")
    def tries(self, mail: EmailNotification) -> str:
        return f"{mail.retry_count} of {mail.max_retries}"

    @admin.display(description="last error")
    def error(self, mail: EmailNotification) -> SafeString | str:
        text = mail.last_error
        return format_html('<span title="{}">{}…</span>', text, text[:60]) if len(text) > 60 else text or "–"

    @admin.display(description="created")
    def created(self, mail: EmailNotification) -> SafeString | str:
        return ago(mail.created_at)

    @admin.display(description="next attempt")
    def next_try(self, mail: EmailNotification) -> SafeString | str:
        return ago(mail.next_attempt_at) if mail.status in (Status.PENDING, Status.FAILED) else "–"

    @admin.display(description="failed")
    def failed(self, mail: EmailNotification) -> SafeString | str:
        return ago(mail.failed_at)

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """In a list of dead letters, show when each failed, because none has a next attempt."""
        if request.GET.get("status") != Status.DEAD_LETTERED and "cause" not in request.GET:
            return self.list_display
        return ["failed" if name == "next_try" else name for name in self.list_display]

    def get_queryset(self, request: HttpRequest) -> QuerySet[EmailNotification]:
        """Load bodies and errors only for the page of one e-mail."""
        rows = super().get_queryset(request)
        one = request.resolver_match is not None and str(request.resolver_match.url_name).endswith("_change")
        if one or "failed" in self.get_list_display(request):
            rows = rows.annotate(last_error_at=LAST_ERROR_AT)
        return rows if one else rows.defer("body", "body_text", "errors")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[EmailNotification], search_term: str
    ) -> tuple[QuerySet[EmailNotification], bool]:
        """Search an indexed column, chosen by the form of the term: address, id or reference."""
        if not (text := search_term.strip()):
            return queryset, False
        if "@" in text:
            return queryset.filter(recipient_email__iexact=as_stored(text)), False
        if wanted := as_uuid(text):
            if queryset.filter(id=wanted).exists():
                return queryset.filter(id=wanted), False
            return queryset.filter(order_id=wanted), False
        orders = EmailNotification._meta.get_field("order").related_model
        assert isinstance(orders, type)
        found = orders._default_manager.filter(reference=text).order_by("-created_at", "-id")
        return queryset.filter(order_id__in=list(found.values_list("id", flat=True)[:100])), False

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        return super().changelist_view(request, {"attention": attention()} | (extra_context or {}))


def attention() -> list[dict[str, Any]]:
    """Return the tiles. One bounded statement on partial indexes counts the e-mails by state."""
    statuses = (Status.DEAD_LETTERED, Status.FAILED, Status.PENDING, Status.PROCESSING)
    labels = ("dead letters", "failed, will be retried", "pending", "being sent")
    counts = count_each(EmailNotification.objects.filter(status=status) for status in statuses)
    beats = Heartbeat.objects.filter(name="poll").annotate(passed=Now() - F("beat_at"))
    jobs = {name: passed.total_seconds() for name, passed in beats.values_list("name", "passed")}
    found = decide(Facts(jobs=jobs, rows={"": Rows(dead_lettered=counts[0])}))
    codes = {one.code for one in found}
    tiles: list[dict[str, Any]] = [
        {
            "label": label,
            "value": bounded(number),
            "bad": status == Status.DEAD_LETTERED and "EmailDeadLetters" in codes,
            "query": f"?status={status}",
        }
        for label, status, number in zip(labels, statuses, counts, strict=True)
    ]
    value = f"{min(jobs.values()):.0f} s ago" if jobs else "never"
    tiles.append({"label": "last poll", "value": value, "bad": "PollMissing" in codes, "query": ""})
    providers = reverse("admin:notifications_emailnotification_providers")
    views = gate().read_providers()
    shut = {one.subject for one in provider_conditions(views)}
    for view in views:
        value = "sends" if view.state is State.CLOSED else view.state
        bad = bool(shut & {"", view.provider})  # "": a condition of all providers
        tiles.append({"label": view.provider, "value": value, "bad": bad, "query": providers})
    return tiles
