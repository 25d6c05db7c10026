"""The admin of API tokens."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from notifications.connected import order_sources
from web.admin.base import EstimatingPaginator, ListAdmin, answer_with_page, pill, show_time
from web.models import ApiToken, declared_scopes


class TokenForm(forms.ModelForm[ApiToken]):
    scopes = forms.MultipleChoiceField(
        choices=[(scope, scope) for scope in declared_scopes()], widget=forms.CheckboxSelectMultiple
    )

    source = forms.ChoiceField(
        choices=lambda: [("", "all"), *((name, name) for name in order_sources())],
        required=False,
        help_text="A token of one source sees its orders alone, and sends its events alone.",
    )

    class Meta:
        model = ApiToken
        fields = ["name", "scopes", "source", "expires_at"]


@admin.register(ApiToken)
class ApiTokenAdmin(ListAdmin[ApiToken]):
    """Creates tokens, shows each once, and revokes them. Nobody can change one."""

    form = TokenForm
    paginator = EstimatingPaginator
    list_display = [
        "name",
        "prefix",
        "scopes",
        "source",
        "created_at",
        "last_use",
        "expires_at",
        "revoked_at",
    ]
    ordering = ["-id"]
    actions = ["revoke"]

    def has_change_permission(self, request: HttpRequest, obj: ApiToken | None = None) -> bool:
        return obj is None and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: ApiToken | None = None) -> bool:
        return False  # a revoked token stays visible until the daily purge deletes it

    @admin.display(description="last used", ordering="last_used_at")
    def last_use(self, token: ApiToken) -> SafeString | str:
        last = show_time(token.last_used_at)
        if not token.is_unused():
            return last
        mark = f"unused for {ApiToken.UNUSED_DAYS} days"
        return format_html("{} {}", last, pill("dead_lettered", mark))

    def save_model(self, request: HttpRequest, obj: ApiToken, form: Any, change: bool) -> None:
        """Create the secret and show it once."""
        secret = ApiToken.new_secret()
        obj.prefix, obj.digest = secret[:12], ApiToken.digest_of(secret)
        super().save_model(request, obj, form, change)
        messages.warning(request, f"Copy the token now, because it is shown only once: {secret}")

    def response_add(
        self, request: HttpRequest, obj: ApiToken, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Go on with the list, which shows the secret."""
        url = reverse(f"admin:{self.opts.app_label}_apitoken_changelist")
        return answer_with_page(request, url=url, view=self.changelist_view)

    @admin.action(description="Revoke the selected tokens", permissions=["change"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiToken]) -> None:
        tokens = list(queryset.filter(revoked_at__isnull=True))
        queryset.filter(revoked_at__isnull=True).update(revoked_at=Now())
        for token in tokens:
            self.log_change(request, token, "Revoked.")
        self.message_user(request, f"{len(tokens)} revoked.")
