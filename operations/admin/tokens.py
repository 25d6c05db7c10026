"""The admin of API tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from notifications.connected import order_sources
from runtime.models import AuditRow
from web.admin.base import ChoiceFilter, EstimatingPaginator, ListAdmin, answer_with_page, pill, show_time
from web.admin.tiles import Tile, attention
from web.models import ApiToken, ApiTokenQuerySet, declared_scopes


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


class TokenStateFilter(ChoiceFilter):
    title, parameter_name = "state", "state"

    def choices_of(self) -> Iterable[str]:
        return ["expiring", "unused"]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        state = str(self.value())
        if state not in self.choices_of() or not isinstance(queryset, ApiTokenQuerySet):
            return queryset
        rows: QuerySet[Any] = getattr(queryset, state)()
        return rows


@attention(55)
def tokens(request: HttpRequest) -> Iterator[Tile]:
    """Show the tokens that end soon, and those that nobody uses, if there are some."""
    if not request.user.has_perm("web.view_apitoken"):
        return
    page = reverse("admin:web_apitoken_changelist")
    for state, label, help in (
        ("expiring", f"API tokens that end within {ApiToken.EXPIRING_DAYS} days", "Rotate or replace them."),
        ("unused", f"API tokens unused for {ApiToken.UNUSED_DAYS} days", "Revoke those that nobody needs."),
    ):
        rows = getattr(ApiToken.objects, state)()
        yield Tile(label=label, url=f"{page}?state={state}", rows=rows, help=help)


@admin.register(ApiToken)
class ApiTokenAdmin(ListAdmin[ApiToken]):
    """Creates tokens, shows each once, and revokes them. Nobody can change one."""

    audit_kind = AuditRow.Kind.TOKEN
    form = TokenForm
    paginator = EstimatingPaginator
    list_display = [
        "name",
        "prefix",
        "scopes",
        "source",
        "shown_networks",
        "created_at",
        "last_use",
        "expires_at",
        "revoked_at",
    ]
    list_filter = [TokenStateFilter]
    ordering = ["-id"]
    actions = ["revoke"]

    def has_change_permission(self, request: HttpRequest, obj: ApiToken | None = None) -> bool:
        return obj is None and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: ApiToken | None = None) -> bool:
        return False  # a revoked token stays visible until the daily purge deletes it

    def audited(self, row: ApiToken) -> dict[str, Any]:
        return {"source": row.source or None}  # without a source it reaches all shops

    @admin.display(description="networks")
    def shown_networks(self, token: ApiToken) -> str:
        return ", ".join(token.networks) or "–"

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
        shown = format_html('<code data-copy="the token">{}</code>', secret)
        messages.warning(request, format_html("Copy the token now, because it is shown only once: {}", shown))

    def response_add(
        self, request: HttpRequest, obj: ApiToken, post_url_continue: str | None = None
    ) -> HttpResponse:
        """Go on with the list, which shows the secret."""
        url = reverse(f"admin:{self.opts.app_label}_apitoken_changelist")
        return answer_with_page(request, url=url, view=self.changelist_view)

    @admin.action(description="Revoke the selected tokens", permissions=["change"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ApiToken]) -> None:
        with transaction.atomic():
            tokens = list(queryset.filter(revoked_at__isnull=True).order_by("id").select_for_update())
            ApiToken.objects.filter(id__in=[token.id for token in tokens]).update(revoked_at=Now())
            for token in tokens:
                self.log_change(request, token, "Revoked.")
        self.message_user(request, f"{len(tokens)} revoked.")
