"""The engine's tables in the admin: events to look at, tokens to make and revoke."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from outbox import retention
from outbox.models import ApiToken, Heartbeat, OutboxEvent, RetiredPartition
from outbox.triage import AgeFilter, TriageAdmin, ago, as_uuid

# The lists need the width more than a second menu.
admin.site.enable_nav_sidebar = False
admin.site.site_header = admin.site.site_title = "orderpost"
admin.site.site_url = "/api/docs"


class PublishedFilter(admin.SimpleListFilter):
    """Published or not."""

    title = "published"
    parameter_name = "published"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Two answers."""
        return [("yes", "yes"), ("no", "not yet")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[OutboxEvent]) -> QuerySet[OutboxEvent]:
        """By the time of publishing."""
        if self.value() in ("yes", "no"):
            return queryset.filter(published_at__isnull=self.value() == "no")
        return queryset


@admin.register(OutboxEvent)
class OutboxEventAdmin(TriageAdmin[OutboxEvent]):
    """Domain events, newest first."""

    list_display = ["event_type", "aggregate_id", "sequence", "created", "published_at"]
    list_filter = [PublishedFilter, AgeFilter]
    search_fields = ["aggregate_id"]
    search_help_text = "An aggregate's id (an order's)."

    @admin.display(description="created")
    def created(self, event: OutboxEvent) -> str:
        """Relative, exact on hover."""
        return ago(event.created_at)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[OutboxEvent], search_term: str
    ) -> tuple[QuerySet[OutboxEvent], bool]:
        """By the aggregate's id alone, which has an index."""
        if not (text := search_term.strip()):
            return queryset, False
        wanted = as_uuid(text)
        return (queryset.filter(aggregate_id=wanted) if wanted else queryset.none()), False


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
