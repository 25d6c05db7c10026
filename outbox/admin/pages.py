"""The engine's tables in the admin: events to look at, tokens to make and revoke."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString

from outbox.admin.base import AgeFilter, ChoiceFilter, TriageAdmin, ago, as_uuid, pill
from outbox.events import inbox
from outbox.events import publish as services
from outbox.events.transports import BrokerAway
from outbox.models import ApiToken, DeadEvent, Heartbeat, OutboxEvent, RetiredPartition
from outbox.retention import rollover as retention

MOST_AT_ONCE = 5000
Verb = Callable[..., list[uuid.UUID]]

# The lists need the width more than a second menu.
admin.site.enable_nav_sidebar = False
admin.site.site_header = admin.site.site_title = "orderpost"
admin.site.site_url = "/api/docs"


class EventStateFilter(ChoiceFilter):
    """By what became of it; each state but the last has an index."""

    title, parameter_name = "state", "state"
    conditions = {
        "dead-lettered": Q(published_at=None, discarded_at=None, dead_lettered_at__isnull=False),
        "failing": Q(published_at=None, discarded_at=None, dead_lettered_at=None, retry_count__gt=0),
        "not published": Q(published_at=None, dead_lettered_at=None),
        "published": Q(published_at__isnull=False),
    }

    def choices_of(self) -> Iterable[str]:
        """Worst first."""
        return self.conditions

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Rows in that state."""
        condition = self.conditions.get(self.value() or "")
        return queryset if condition is None else queryset.filter(condition)


@admin.register(OutboxEvent)
class OutboxEventAdmin(TriageAdmin[OutboxEvent]):
    """Domain events, newest first; a person republishes or discards the dead ones."""

    list_display = ["event_type", "aggregate_id", "sequence", "state", "error", "created"]
    list_filter = [EventStateFilter, AgeFilter]
    search_fields = ["aggregate_id"]
    search_help_text = "An event's id, or an aggregate's (an order's)."
    actions = ["republish", "discard"]

    @admin.display(description="state")
    def state(self, event: OutboxEvent) -> SafeString:
        """A pill."""
        if event.published_at:
            return pill("sent", "published")
        if event.discarded_at:
            return pill("discarded")
        if event.dead_lettered_at:
            return pill("dead_lettered")
        return pill("failed", "failing") if event.retry_count else pill("pending", "not published")

    @admin.display(description="last error")
    def error(self, event: OutboxEvent) -> str:
        """Its beginning."""
        return event.last_error[:80] or "–"

    @admin.display(description="created")
    def created(self, event: OutboxEvent) -> str:
        """Relative, exact on hover."""
        return ago(event.created_at)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[OutboxEvent], search_term: str
    ) -> tuple[QuerySet[OutboxEvent], bool]:
        """By the event's own id or the aggregate's, both of which have an index."""
        if not (text := search_term.strip()):
            return queryset, False
        if (wanted := as_uuid(text)) is None:
            return queryset.none(), False
        if queryset.filter(id=wanted).exists():
            return queryset.filter(id=wanted), False
        return queryset.filter(aggregate_id=wanted), False

    def has_resolve_permission(self, request: HttpRequest) -> bool:
        """Its own permission."""
        return request.user.has_perm("outbox.resolve_outboxevent")

    @admin.action(description="Republish, and the later events of its aggregate", permissions=["resolve"])
    def republish(self, request: HttpRequest, queryset: QuerySet[OutboxEvent]) -> None:
        """Dead-lettered and failing ones, with all their tries."""
        self._resolve(request, queryset, services.republish_events, "Republished")

    @admin.action(description="Discard, so that later events of its aggregate go on", permissions=["resolve"])
    def discard(self, request: HttpRequest, queryset: QuerySet[OutboxEvent]) -> None:
        """Dead-lettered ones."""
        self._resolve(request, queryset, services.discard_events, "Discarded")

    def _resolve(self, request: HttpRequest, queryset: QuerySet[OutboxEvent], verb: Verb, done: str) -> None:
        ids = list(queryset.order_by("id").values_list("id", flat=True)[:MOST_AT_ONCE])
        with transaction.atomic():
            changed = verb(ids=ids)
            for event in OutboxEvent.objects.filter(id__in=changed).only(
                "id", "event_type", "aggregate_id", "sequence"
            ):
                self.log_change(request, event, f"{done}.")
        self.message_user(request, f"{done}: {len(changed)}. Left alone: {len(ids) - len(changed)}.")


@admin.register(DeadEvent)
class DeadEventAdmin(TriageAdmin[DeadEvent]):
    """Events of other services that could not be taken; a person replays or discards them."""

    list_display = ["topic", "event_id", "state", "short", "failed"]
    search_fields = ["event_id"]
    search_help_text = "An event's id."
    actions = ["replay", "discard"]

    @admin.display(description="state")
    def state(self, dead: DeadEvent) -> SafeString:
        """A pill."""
        if dead.replayed_at:
            return pill("sent", "replayed")
        return pill("discarded") if dead.discarded_at else pill("dead_lettered", "dead")

    @admin.display(description="error")
    def short(self, dead: DeadEvent) -> str:
        """Its beginning."""
        return dead.error[:120]

    @admin.display(description="failed")
    def failed(self, dead: DeadEvent) -> str:
        """Relative."""
        return ago(dead.failed_at)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[DeadEvent], search_term: str
    ) -> tuple[QuerySet[DeadEvent], bool]:
        """By the event's id."""
        if not (text := search_term.strip()):
            return queryset, False
        wanted = as_uuid(text)
        return (queryset.filter(event_id=wanted) if wanted else queryset.none()), False

    def has_resolve_permission(self, request: HttpRequest) -> bool:
        """Its own permission."""
        return request.user.has_perm("outbox.resolve_deadevent")

    @admin.action(description="Replay: put it back on its topic", permissions=["resolve"])
    def replay(self, request: HttpRequest, queryset: QuerySet[DeadEvent]) -> None:
        """One by one, until the broker refuses."""
        replayed = 0
        try:
            for dead in queryset.filter(replayed_at=None, discarded_at=None).order_by("id")[:1000]:
                inbox.replay(dead=dead)
                self.log_change(request, dead, "Replayed.")
                replayed += 1
        except BrokerAway as error:
            self.message_user(request, f"The broker does not answer: {error}", messages.ERROR)
        self.message_user(request, f"Replayed: {replayed}.")

    @admin.action(description="Discard", permissions=["resolve"])
    def discard(self, request: HttpRequest, queryset: QuerySet[DeadEvent]) -> None:
        """They stay in the list."""
        rows = list(queryset.filter(replayed_at=None, discarded_at=None).order_by("id")[:1000])
        DeadEvent.objects.filter(id__in=[row.id for row in rows]).update(discarded_at=Now())
        for row in rows:
            self.log_change(request, row, "Discarded.")
        self.message_user(request, f"Discarded: {len(rows)}.")


@admin.register(Heartbeat)
class HeartbeatAdmin(TriageAdmin[Heartbeat]):
    """When what must happen regularly last did."""

    list_display = ["name", "beat_at"]
    ordering = ["name"]


@admin.register(RetiredPartition)
class PartitionAdmin(TriageAdmin[RetiredPartition]):
    """Every partition there is or was, and what holds one that should have left."""

    ordering = ["name"]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """From the catalogue and the records, so not Django's list of one table."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "title": "Partitions",
            "opts": self.opts,
            "lines": retention.overview(using="default"),
            "media": self.media,
        }
        return TemplateResponse(request, "admin/outbox/retiredpartition/change_list.html", context)


class TokenForm(forms.ModelForm[ApiToken]):
    """A new token: name, scopes, end."""

    scopes = forms.MultipleChoiceField(
        choices=[(scope, scope) for scope in ApiToken.SCOPES], widget=forms.CheckboxSelectMultiple
    )

    class Meta:
        model = ApiToken
        fields = ["name", "scopes", "expires_at"]


@admin.register(ApiToken)
class ApiTokenAdmin(admin.ModelAdmin[ApiToken]):
    """Tokens are made, shown once, and revoked; never changed."""

    form = TokenForm
    list_display = ["name", "prefix", "scopes", "created_at", "expires_at", "revoked_at"]
    ordering = ["-id"]
    actions = ["revoke"]

    def has_change_permission(self, request: HttpRequest, obj: ApiToken | None = None) -> bool:
        """A token that exists is only revoked, from the list."""
        return obj is None and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: ApiToken | None = None) -> bool:
        """A revoked token stays, so that one can see that it was."""
        return False

    def save_model(self, request: HttpRequest, obj: ApiToken, form: Any, change: bool) -> None:
        """Make the secret and show it once."""
        secret = ApiToken.new_secret()
        obj.prefix, obj.digest = secret[:12], ApiToken.digest_of(secret)
        super().save_model(request, obj, form, change)
        messages.warning(request, f"The token, shown only this once: {secret}")

    @admin.action(description="Revoke the selected tokens", permissions=["change"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiToken]) -> None:
        """At once, for good."""
        tokens = list(queryset.filter(revoked_at__isnull=True))
        queryset.filter(revoked_at__isnull=True).update(revoked_at=Now())
        for token in tokens:
            self.log_change(request, token, "Revoked.")
        self.message_user(request, f"{len(tokens)} revoked.")
