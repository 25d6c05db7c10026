"""The admin of API tokens, heartbeats and partitions."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from outbox.admin.base import TriageAdmin
from outbox.models import ApiToken, DetachedPartition, Heartbeat
from outbox.retention.overview import overview

# The lists need the width more than a second menu.
admin.site.enable_nav_sidebar = False
admin.site.site_header = admin.site.site_title = "orderpost"
admin.site.site_url = "/api/docs"


@admin.register(Heartbeat)
class HeartbeatAdmin(TriageAdmin[Heartbeat]):
    """When what must happen regularly last did."""

    list_display = ["name", "beat_at"]
    ordering = ["name"]


@admin.register(DetachedPartition)
class PartitionAdmin(TriageAdmin[DetachedPartition]):
    """Every partition there is or was, and what holds one that should have left."""

    ordering = ["name"]

    def has_view_permission(self, request: HttpRequest, obj: DetachedPartition | None = None) -> bool:
        # The permission keeps the name that release 0.1.0 gave it.
        return request.user.has_perm("outbox.view_retiredpartition")

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
            "lines": overview(using="default"),
            "media": self.media,
        }
        return TemplateResponse(request, "admin/outbox/detachedpartition/change_list.html", context)


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
