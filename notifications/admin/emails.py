"""Triage: which e-mails are stuck, why, and what a person does about it (resend, give up)."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import quote

from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db import connection, transaction
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from notifications import services
from notifications.admin.providers import ProvidersPage
from notifications.delivery.drain import gate
from notifications.models import EmailNotification
from notifications.rendering import event_types
from notifications.suppressions import of_address
from outbox.admin.base import AgeFilter, ChoiceFilter, TriageAdmin, ago, as_uuid, pill
from outbox.delivery.breaker import State
from outbox.delivery.deliverable import Change, Refusal
from outbox.delivery.outcomes import Status
from outbox.models import Heartbeat

#: A person's press moves at most this many rows; press again for the rest.
MOST_AT_ONCE = 50_000
CHUNK = 500
COUNT_TO = 10_001
PREVIEW_POLICY = "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'"
Verb = Callable[..., tuple[list[Change], list[Refusal]]]


class StatusFilter(ChoiceFilter):
    """By state."""

    title, parameter_name = "status", "status"

    def choices_of(self) -> Iterable[str]:
        """Worst first."""
        order = ("dead_lettered", "failed", "pending", "processing", "suppressed", "discarded", "sent")
        return [Status(value).value for value in order]


class EventFilter(ChoiceFilter):
    """By event."""

    title, parameter_name = "event", "event_type"

    def choices_of(self) -> Iterable[str]:
        """Those that have a template."""
        return sorted(event_types())


class ProviderFilter(ChoiceFilter):
    """By the provider that was asked last."""

    title, parameter_name = "provider", "provider"

    def choices_of(self) -> Iterable[str]:
        """Those configured."""
        return settings.EMAIL_PROVIDERS


@admin.register(EmailNotification)
class EmailNotificationAdmin(ProvidersPage, TriageAdmin[EmailNotification]):
    """The list of e-mails, one e-mail's story, and the two things that a person can do."""

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
    list_filter = [StatusFilter, EventFilter, ProviderFilter, AgeFilter]
    search_fields = ["recipient_email"]
    search_help_text = "An exact address, an order's or notification's id, or an order's reference."
    actions = ["resend", "give_up"]
    fieldsets = [
        (
            "E-mail",
            {
                "fields": [
                    "state",
                    "event_type",
                    "recipient_email",
                    "suppressed",
                    "to_name",
                    "locale",
                    "order_link",
                ]
            },
        ),
        ("Delivery", {"fields": ["tries", "next_try", "last_error", "error_table"]}),
        (
            "Provider",
            {
                "fields": [
                    "provider",
                    "provider_message_id",
                    "sent_at",
                    "delivered_at",
                    "bounced_at",
                    "complained_at",
                ]
            },
        ),
        ("Content", {"fields": ["subject", "preview", "text"]}),
        (
            "Identity",
            {"fields": ["id", "correlation_id", "idempotency_key", "created_at", "updated_at", "claimed_at"]},
        ),
    ]

    # --- what is shown ---
    @admin.display(description="status")
    def state(self, mail: EmailNotification) -> SafeString:
        """A pill."""
        return pill(mail.status)

    @admin.display(description="order")
    def order_link(self, mail: EmailNotification) -> SafeString:
        """The end of the id tells orders apart; its beginning is the time."""
        url = reverse("admin:orders_order_change", args=[mail.order_id])
        return format_html('<a href="{}" title="{}">…{}</a>', url, mail.order_id, str(mail.order_id)[-8:])

    @admin.display(description="address")
    def suppressed(self, mail: EmailNotification) -> SafeString | str:
        """Whether it may be written to."""
        if (found := of_address(mail.recipient_email)) is None:
            return "may be written to"
        url = f"{reverse('admin:notifications_suppression_changelist')}?q={quote(mail.recipient_email)}"
        return format_html('suppressed: {} (<a href="{}">lift</a>)', found.get_reason_display(), url)

    @admin.display(description="retries")
    def tries(self, mail: EmailNotification) -> str:
        """Used of allowed."""
        return f"{mail.retry_count} of {mail.max_retries}"

    @admin.display(description="last error")
    def error(self, mail: EmailNotification) -> SafeString | str:
        """Its beginning; all of it on hover."""
        text = mail.last_error
        return format_html('<span title="{}">{}…</span>', text, text[:60]) if len(text) > 60 else text or "–"

    @admin.display(description="created")
    def created(self, mail: EmailNotification) -> SafeString | str:
        """Relative."""
        return ago(mail.created_at)

    @admin.display(description="next attempt")
    def next_try(self, mail: EmailNotification) -> SafeString | str:
        """Only where one will follow."""
        return ago(mail.next_attempt_at) if mail.status in (Status.PENDING, Status.FAILED) else "–"

    @admin.display(description="attempts that failed")
    def error_table(self, mail: EmailNotification) -> SafeString | str:
        """One line for each."""
        if not mail.errors:
            return "none"
        lines = format_html_join(
            "",
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            (
                (
                    str(one.get("at", ""))[:19].replace("T", " "),
                    one.get("provider"),
                    one.get("outcome"),
                    one.get("text"),
                )
                for one in mail.errors
            ),
        )
        head = "<tr><th>Time (UTC)</th><th>Provider</th><th>Outcome</th><th>What it said</th></tr>"
        return format_html('<table class="errors">' + head + "{}</table>", lines)

    @admin.display(description="as HTML")
    def preview(self, mail: EmailNotification) -> SafeString:
        """In a frame that can load and run nothing."""
        url = reverse("admin:notifications_emailnotification_preview", args=[mail.id])
        return format_html(
            '<iframe class="preview" sandbox src="{}" title="The e-mail as HTML"></iframe>', url
        )

    @admin.display(description="as text")
    def text(self, mail: EmailNotification) -> SafeString:
        """The plain part."""
        return format_html('<pre class="mail-text">{}</pre>', mail.body_text)

    # --- how it is found ---
    def get_queryset(self, request: HttpRequest) -> QuerySet[EmailNotification]:
        """Bodies stay in the table until one row is looked at."""
        rows = super().get_queryset(request)
        match = request.resolver_match
        one = match is not None and str(match.url_name).endswith("_change")
        return rows if one else rows.defer("body", "body_text", "errors")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[EmailNotification], search_term: str
    ) -> tuple[QuerySet[EmailNotification], bool]:
        """The term's form says which column is meant; each has an index, and no two are asked at once."""
        if not (text := search_term.strip()):
            return queryset, False
        if "@" in text:
            return queryset.filter(recipient_email=text), False
        if wanted := as_uuid(text):
            if queryset.filter(id=wanted).exists():
                return queryset.filter(id=wanted), False
            return queryset.filter(order_id=wanted), False
        orders = EmailNotification._meta.get_field("order").related_model
        assert isinstance(orders, type)
        found = orders._default_manager.filter(reference=text).order_by("-id").values_list("id", flat=True)
        return queryset.filter(order_id__in=list(found[:100])), False

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The list, with what needs attention above it."""
        return super().changelist_view(request, {"attention": attention()} | (extra_context or {}))

    # --- what a person can do ---
    def has_resend_permission(self, request: HttpRequest) -> bool:
        """Its own permission."""
        return request.user.has_perm("notifications.resend_emailnotification")

    def has_discard_permission(self, request: HttpRequest) -> bool:
        """Its own permission."""
        return request.user.has_perm("notifications.discard_emailnotification")

    @admin.action(description="Resend", permissions=["resend"])
    def resend(self, request: HttpRequest, queryset: QuerySet[EmailNotification]) -> HttpResponse | None:
        """Ask, then resend."""
        return self._act(request, queryset, "resend", services.resend, "Resent")

    @admin.action(description="Give up", permissions=["discard"])
    def give_up(self, request: HttpRequest, queryset: QuerySet[EmailNotification]) -> HttpResponse | None:
        """Ask, then discard."""
        return self._act(request, queryset, "give_up", services.give_up, "Given up")

    def _act(
        self, request: HttpRequest, queryset: QuerySet[EmailNotification], action: str, verb: Verb, done: str
    ) -> HttpResponse | None:
        if "confirmed" not in request.POST:
            return self._ask(request, queryset, action)
        reason = request.POST.get("reason", "").strip()[:200]
        ids = list(queryset.order_by("id").values_list("id", flat=True)[:MOST_AT_ONCE])
        changed, refused = 0, Counter[str]()
        for start in range(0, len(ids), CHUNK):
            with transaction.atomic():
                changes, refusals = verb(ids=ids[start : start + CHUNK])
                note = f"{done} (was {{}})." + (f" {reason}" if reason else "")
                self._log(request, [(change.row.pk, note.format(change.was)) for change in changes])
            changed += len(changes)
            refused.update(refusal.reason for refusal in refusals)
        level = messages.SUCCESS if changed else messages.WARNING
        text = f"{done}: {changed}."
        if refused:
            text += (
                " Left alone: " + "; ".join(f"{count} ({why})" for why, count in refused.most_common()) + "."
            )
        self.message_user(request, text, level)
        return None

    def _log(self, request: HttpRequest, lines: Iterable[tuple[uuid.UUID, str]]) -> None:
        kind = ContentType.objects.get_for_model(EmailNotification)
        LogEntry.objects.bulk_create(
            LogEntry(
                user_id=request.user.pk or 0,
                content_type=kind,
                object_id=str(id),
                object_repr=f"E-mail {id}",
                action_flag=CHANGE,
                change_message=message,
            )
            for id, message in lines
        )

    def _ask(self, request: HttpRequest, queryset: QuerySet[EmailNotification], action: str) -> HttpResponse:
        counts = Counter(queryset.order_by().values_list("status", flat=True)[:COUNT_TO])
        taken = (
            (Status.DEAD_LETTERED, Status.DISCARDED, Status.SUPPRESSED, Status.FAILED)
            if action == "resend"
            else (Status.DEAD_LETTERED,)
        )
        total = sum(counts.values())
        context = {
            **self.admin_site.each_context(request),
            "title": "Resend e-mails" if action == "resend" else "Give up e-mails",
            "opts": self.opts,
            "action": action,
            "taken": [(status.replace("_", " "), counts[status]) for status in taken if counts[status]],
            "left": [
                (status.replace("_", " "), n) for status, n in sorted(counts.items()) if status not in taken
            ],
            "total": f"{COUNT_TO - 1:,}+" if total >= COUNT_TO else total,
            "most": MOST_AT_ONCE,
            "selected": request.POST.getlist(ACTION_CHECKBOX_NAME)[:1000],
            "checkbox": ACTION_CHECKBOX_NAME,
            "across": request.POST.get("select_across", "0"),
            "media": self.media,
        }
        return TemplateResponse(request, "admin/notifications/emailnotification/confirm.html", context)

    # --- the preview ---
    def get_urls(self) -> list[URLPattern]:
        """The e-mail's HTML at an address of its own, for the frame."""
        view = self.admin_site.admin_view(self.preview_view)
        return [
            path("<uuid:id>/preview/", view, name="notifications_emailnotification_preview"),
            path(
                "providers/",
                self.admin_site.admin_view(self.providers_view),
                name="notifications_emailnotification_providers",
            ),
            *super().get_urls(),
        ]

    def preview_view(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        """This function will answer with the stored HTML, forbidden to load or run anything."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        body = EmailNotification.objects.filter(id=id).values_list("body", flat=True).first()
        if body is None:
            raise Http404
        return HttpResponse(
            body, headers={"Content-Security-Policy": PREVIEW_POLICY, "X-Content-Type-Options": "nosniff"}
        )


def attention() -> list[dict[str, Any]]:
    """This function will count what needs attention, in one bounded statement on partial indexes."""
    table = EmailNotification._meta.db_table
    some = f"(SELECT count(*) FROM (SELECT 1 FROM {table} WHERE status = %s LIMIT {COUNT_TO}) AS bounded)"  # noqa: S608
    counted = (Status.DEAD_LETTERED, Status.FAILED, Status.PENDING, Status.PROCESSING)
    with connection.cursor() as cursor:
        cursor.execute("SELECT " + ", ".join([some] * len(counted)), [str(status) for status in counted])
        dead, failed, pending, processing = cursor.fetchone()
    age = Heartbeat.age(name="poll")
    late = age is None or age > 2 * settings.POLL_INTERVAL
    return [
        {"label": "dead letters", "value": _bounded(dead), "bad": dead > 0, "query": "?status=dead_lettered"},
        {
            "label": "failed, will be retried",
            "value": _bounded(failed),
            "bad": False,
            "query": "?status=failed",
        },
        {"label": "pending", "value": _bounded(pending), "bad": False, "query": "?status=pending"},
        {"label": "being sent", "value": _bounded(processing), "bad": False, "query": "?status=processing"},
        {
            "label": "last poll",
            "value": "never" if age is None else f"{age:.0f} s ago",
            "bad": late,
            "query": "",
        },
        *(
            {
                "label": view.provider,
                "value": "sends" if view.state == State.CLOSED else view.state,
                "bad": view.state != State.CLOSED,
                "query": reverse("admin:notifications_emailnotification_providers"),
            }
            for view in gate().views()
        ),
    ]


def _bounded(count: int) -> str:
    return f"{COUNT_TO - 1:,}+" if count >= COUNT_TO else f"{count:,}"
