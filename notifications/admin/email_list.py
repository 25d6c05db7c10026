"""The list of e-mails: columns, filters and search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

from django.conf import settings
from django.contrib import admin
from django.contrib.admin.templatetags.admin_urls import admin_urlname
from django.db.models import Case, OuterRef, Q, QuerySet, Subquery, TextField, When
from django.db.models.functions import Cast
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from notifications import filters
from notifications.admin.email_state import describe_copy, state_pill
from notifications.connected import order_sources
from notifications.content.template_files import event_types
from notifications.filters import orders
from notifications.models import LAST_ERROR_AT, OWN_ORDERS, EmailNotification, EmailNotificationQuerySet
from notifications.states.transitions import DUE_STATES, LABELS, Status
from runtime.binding import Binding
from runtime.database.beginnings import beginning_with
from runtime.models import AuditRow
from web.admin.base import AgeFilter, ChoiceFilter, ChosenFilter, show_time
from web.admin.period import PeriodFilter
from web.admin.rights import shops_of
from web.admin.search import HELP, Term, note_cut
from web.admin.tabs import StateRows, TabFilter


def addressed_to(request: HttpRequest, term: Term) -> Q:
    """Return the condition of the shops' e-mails to an address or its beginning, or with an id."""
    if term.address:
        return Q(recipient_email__iexact=term.address)
    if term.id:
        return Q(id=term.id)
    if not term.address_begins:
        return Q(id__in=[])
    rows, is_cut = beginning_with(
        term.address_begins,
        table="email_notifications",
        column="recipient_email",
        newest_first="id DESC",
        shops=shops_of(request),
    )
    if is_cut:
        note_cut(request)
    return Q(id__in=[id for id, _ in rows])


def of_orders(request: HttpRequest, term: Term) -> Q:
    """Return the condition of the e-mails of an order with this id, or of those that a text finds."""
    if term.id:
        return Q(order_id=term.id)
    hits = orders().search(term.text, shops=shops_of(request))
    if hits.is_cut:
        note_cut(request)
    return Q(order_id__in=hits.ids)


def with_order(rows: EmailNotificationQuerySet) -> EmailNotificationQuerySet:
    """Read each row's reference and shop from its order, which may have been deleted."""
    order = orders().filter(id=OuterRef("order_id"))
    return with_sender(rows).annotate(
        reference=Subquery(order.values("reference")[:1]), shop=Subquery(order.values("source")[:1])
    )


def with_sender(rows: EmailNotificationQuerySet) -> EmailNotificationQuerySet:
    """Read who sent each copy, from the audit of its order."""
    id = Cast(OuterRef("id"), TextField())
    acts = AuditRow.objects.filter(
        Q(subject_id=id) | Q(act__contains=id),
        order_id=OuterRef("order_id"),
        kind__in=[AuditRow.Kind.COPY, AuditRow.Kind.ADDRESS],
    )
    who = Subquery(acts.order_by("id").values("who")[:1])
    return rows.annotate(sent_by=Case(When(resend_of__isnull=False, then=who)))


class ShopFilter(ChoiceFilter):
    """Filters by the system that owns the order. Shown if there are several."""

    title, parameter_name = "shop", "shop"

    def __init__(self, request: HttpRequest, params: Any, model: Any, model_admin: Any) -> None:
        # A page may make its list twice.
        if "order_sources" not in request.__dict__:
            request.__dict__["order_sources"] = order_sources()
        shops = shops_of(request)
        self.sources = [source for source in request.__dict__["order_sources"] if shops.has(source)]
        self.own = [OWN_ORDERS] if shops.has("") else []
        super().__init__(request, params, model, model_admin)

    def choices_of(self) -> Iterable[str]:
        return [*self.own, *self.sources] if self.sources else []


class ParameterFilter(ChoiceFilter):
    """A filter that notifications.filters applies: a bulk job selects the same rows."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        params = {str(self.parameter_name): self.value() or ""}
        return filters.narrow(cast(EmailNotificationQuerySet, queryset), params)


class EmailStatusFilter(TabFilter, ParameterFilter):
    title, parameter_name = "state", "status"

    def choices_of(self) -> Iterable[str]:
        return LABELS

    def counted(self, rows: QuerySet[Any], shops: Binding) -> Iterable[StateRows]:
        """Return the states that have an index, and the others among all e-mails.

        Those of some shops have one for dead letters and one for all. Own orders have none of their own.
        """
        indexed: list[Sequence[str]] = [[Status.DEAD_LETTERED]]
        if shops.is_unbound:
            indexed += [DUE_STATES, [Status.PROCESSING], [Status.SUPPRESSED], [Status.DISCARDED]]
        elif shops.has(""):
            return
        for states in indexed:
            yield StateRows(states, rows.filter(status__in=states).values_list("status"))
        others = [status for status in LABELS if not any(status in states for states in indexed)]
        yield StateRows(others, rows.values_list("status"))


class DeliveryFilter(ParameterFilter):
    title, parameter_name = "delivery", "delivery"

    def choices_of(self) -> Iterable[str]:
        return filters.DELIVERIES


class EmailShopFilter(ShopFilter, ParameterFilter):
    pass


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
    list_display = ["title", "order_link", "recipient", "shop", "state", "created"]
    list_display_links = ["title"]
    list_filter = [
        EmailShopFilter,
        EmailStatusFilter,
        DeliveryFilter,
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
    search_help_text = HELP

    @admin.display(description="subject")
    def title(self, email: EmailNotification) -> str:
        copy = describe_copy(email)
        return f"{email.subject} ({copy})" if copy else email.subject

    @admin.display(description="recipient")
    def recipient(self, email: EmailNotification) -> str:
        return email.recipient_email

    @admin.display(description="state")
    def state(self, email: EmailNotification) -> SafeString:
        return state_pill(email)

    @admin.display(description="shop")
    def shop(self, email: EmailNotification) -> str:
        source: str | None = getattr(email, "shop", None)
        return "–" if source is None else source or OWN_ORDERS

    @admin.display(description="reference")
    def order_link(self, email: EmailNotification) -> SafeString:
        """Link to the order by its reference, or by the end of its id, whose beginning is only its time."""
        order = EmailNotification._meta.get_field("order").related_model
        url = reverse(admin_urlname(order._meta, SafeString("change")), args=[email.order_id])
        name = getattr(email, "reference", None) or f"…{str(email.order_id)[-8:]}"
        return format_html('<a href="{}" title="{}">{}</a>', url, email.order_id, name)

    @admin.display(description="failures")
    def tries(self, email: EmailNotification) -> int:
        return email.retry_count

    @admin.display(description="last error")
    def error(self, email: EmailNotification) -> SafeString | str:
        text = email.last_error
        return format_html('<span title="{}">{}…</span>', text, text[:60]) if len(text) > 60 else text or "–"

    @admin.display(description="created")
    def created(self, email: EmailNotification) -> SafeString | str:
        return show_time(email.created_at)

    @admin.display(description="next attempt")
    def next_try(self, email: EmailNotification) -> SafeString | str:
        return show_time(email.next_attempt_at) if email.status in DUE_STATES else "–"

    @admin.display(description="failed")
    def failed(self, email: EmailNotification) -> SafeString | str:
        return show_time(email.failed_at)

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Show the reason of e-mails that wait or failed, and when each failed or is tried again."""
        status = request.GET.get("status", "")
        if status == Status.DEAD_LETTERED or "cause" in request.GET:
            return [*self.list_display[:-1], "error", "failed"]
        if status in DUE_STATES or "failing" in request.GET:
            return [*self.list_display[:-1], "error", "next_try"]
        return self.list_display

    def get_queryset(self, request: HttpRequest) -> QuerySet[EmailNotification]:
        """Load bodies and errors only for the page of one e-mail, and columns of its order for the list."""
        rows = cast(EmailNotificationQuerySet, super().get_queryset(request))
        page = str(request.resolver_match.url_name) if request.resolver_match is not None else ""
        is_detail = page.endswith("_change")
        if is_detail or "failed" in self.get_list_display(request):
            rows = rows.annotate(last_error_at=LAST_ERROR_AT)
        if is_detail:
            return rows
        rows = rows.defer("body", "body_text", "errors")
        return with_order(rows) if page.endswith("_changelist") else rows

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[EmailNotification], search_term: str
    ) -> tuple[QuerySet[EmailNotification], bool]:
        """Search the orders first, whose references the e-mails do not have."""
        term = Term.of(search_term)
        if not term.text:
            return queryset, False
        if term.id and queryset.filter(id=term.id).exists():
            return queryset.filter(id=term.id), False
        named = addressed_to(request, term)
        if not term.address:
            named |= of_orders(request, term)
        return queryset.filter(named), False
