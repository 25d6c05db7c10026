"""The list of what connected shops posted, and the page of one post: why it is unusable, and *Try again*."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from runtime.binding import Binding
from runtime.models import AuditRow
from shop_connections.models import ConnectionPost, ConnectionPostQuerySet, PostState, ShopConnection
from shop_connections.process import retry, wake
from web.admin.base import ChoiceFilter, ChosenFilter, TriageAdmin, pill, show_time
from web.admin.period import PeriodFilter
from web.admin.tabs import StateRows, TabFilter


class PostStateFilter(TabFilter):
    title, parameter_name = "state", "state"

    def choices_of(self) -> Sequence[str]:
        return ["unusable", "waiting", "missing"]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        state = str(self.value())
        if state not in self.choices_of() or not isinstance(queryset, ConnectionPostQuerySet):
            return queryset
        rows: QuerySet[Any] = getattr(queryset, state)()
        return rows

    def counted(self, rows: QuerySet[Any], shops: Binding) -> Iterable[StateRows]:
        states = self.choices_of()
        return [StateRows(states, rows.filter(state__in=states).values_list("state"))]


class PostShopFilter(ChoiceFilter):
    title, parameter_name, has_sources = "shop", "source", True

    def choices_of(self) -> Iterable[str]:
        return ShopConnection.objects.values_list("source", flat=True)


#: The colour and the words of each state.
PILLS = {
    PostState.WAITING: ("pending", "waiting"),
    PostState.DONE: ("sent", "processed"),
    PostState.UNUSABLE: ("dead_lettered", "unusable"),
    PostState.MISSING: ("failed", "missing here"),
}


@admin.register(ConnectionPost)
class ConnectionPostAdmin(TriageAdmin[ConnectionPost]):
    audit_kind = AuditRow.Kind.POST
    is_named_in_audit = False
    change_form_template = "admin/connections/connectionpost/change_form.html"
    empty_text = "No connected shop has posted anything. Each post stays for 14 days."
    list_display = ["shown", "source", "state_pill", "short", "received"]
    list_filter = [PostStateFilter, PostShopFilter, ChosenFilter, PeriodFilter]
    actions = ["try_again"]
    fields = ["source", "state_pill", "received", "done", "reference", "order", "shown_body"]

    def get_urls(self) -> list[URLPattern]:
        view, name = self.admin_site.admin_view, "connections_connectionpost_retry"
        return [path("<uuid:id>/retry/", view(self.retry_view), name=name), *super().get_urls()]

    def audited(self, row: ConnectionPost) -> dict[str, Any]:
        return {"order_id": row.order_id, "source": row.source}

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("connections.retry_connectionpost")

    def retry_view(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        if request.method != "POST" or not self.has_retry_permission(request):
            raise PermissionDenied
        self._retry(request, [id])
        return HttpResponseRedirect(reverse("admin:connections_connectionpost_change", args=[id]))

    @admin.action(description="Try again", permissions=["retry"])
    def try_again(self, request: HttpRequest, queryset: QuerySet[ConnectionPost]) -> None:
        self._retry(request, list(queryset.values_list("id", flat=True)))

    def _retry(self, request: HttpRequest, ids: list[uuid.UUID]) -> None:
        with transaction.atomic():
            changed = retry(ids=ids)
            for post in ConnectionPost.objects.filter(id__in=changed).defer("body"):
                self.log_change(request, post, "Tried again.")
        wake()
        self.message_user(
            request, f"To be tried again: {len(changed)}. Left alone: {len(ids) - len(changed)}."
        )

    def get_queryset(self, request: HttpRequest) -> QuerySet[ConnectionPost]:
        return super().get_queryset(request).defer("body")  # a list shows none

    @admin.display(description="order")
    def shown(self, post: ConnectionPost) -> str:
        return post.reference or f"…{str(post.id)[-8:]}"

    @admin.display(description="order")
    def order(self, post: ConnectionPost) -> SafeString | str:
        if post.order_id is None or post.state != PostState.DONE:
            return post.reference or "–"
        url = reverse("admin:orders_order_change", args=[post.order_id])
        return format_html('<a href="{}">{}</a>', url, post.reference or post.order_id)

    @admin.display(description="state")
    def state_pill(self, post: ConnectionPost) -> SafeString:
        return pill(*PILLS[PostState(post.state)])

    @admin.display(description="reason")
    def short(self, post: ConnectionPost) -> str:
        return post.reason[:120] or "–"

    @admin.display(description="received")
    def received(self, post: ConnectionPost) -> SafeString | str:
        return show_time(post.received_at)

    @admin.display(description="processed")
    def done(self, post: ConnectionPost) -> SafeString | str:
        return show_time(post.done_at)

    @admin.display(description="body")
    def shown_body(self, post: ConnectionPost) -> SafeString:
        try:
            text = json.dumps(json.loads(post.body), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            text = post.body
        return format_html('<pre class="mail-text">{}</pre>', text[:100_000])

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add whether the user may have the post tried again."""
        post: ConnectionPost = context["original"]
        context["may_retry"] = post.state == PostState.UNUSABLE and self.has_retry_permission(request)
        return super().render_change_form(request, context, *args, **kwargs)
