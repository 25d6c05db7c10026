"""The page of the audit: every act, with filters and CSV. The page is read-only."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, cast

from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import User
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from runtime.database.ids import parse_uuid
from runtime.models import AuditRow
from web.admin.acts import MAY_READ
from web.admin.base import AgeFilter, ChoiceFilter, TriageAdmin, format_time
from web.admin.menu import MenuItem
from web.admin.period import PeriodFilter
from web.admin.rights import shops_of

_LABELS = dict(AuditRow.Kind.choices)


class KindFilter(ChoiceFilter):
    title = parameter_name = "kind"

    def choices_of(self) -> Iterable[str]:
        return AuditRow.Kind.values

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(kind, _LABELS[kind]) for kind in self.choices_of()]


@admin.register(AuditRow)
class AuditAdmin(TriageAdmin[AuditRow]):
    """Lists acts, newest first, by the primary key, which grows with time."""

    menu = MenuItem(80, "Audit log")
    empty_text = "This list shows each act of a person, an API token or a command, such as a resent e-mail."
    list_display = ["when", "who", "address", "what", "subject", "said", "order_id"]
    list_display_links = None
    list_filter = [AgeFilter, PeriodFilter, KindFilter]
    search_fields = ["subject_id"]
    search_help_text = "The id of an order or of the changed row, or who did it."
    csv_columns = (
        *("id", "at", "kind", "who", "address", "source", "order_id"),
        *("subject_type", "subject_id", "subject", "act", "changes", "reason"),
    )

    def has_view_permission(self, request: HttpRequest, obj: AuditRow | None = None) -> bool:
        return request.user.has_perm(MAY_READ)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def in_shops(self, request: HttpRequest, rows: QuerySet[AuditRow]) -> QuerySet[AuditRow]:
        """Filter the acts in the shops of the user, and the user's own acts that are of no one shop.

        An export, a started job and a replayed event are of none.
        """
        shops, user = shops_of(request), cast(User, request.user)
        if shops.is_unbound:
            return rows
        # An earlier user may have had the name.
        own = rows.filter(source=None, who=user.get_username(), at__gte=user.date_joined)
        return shops.only(rows) | own

    @admin.display(description="time")
    def when(self, row: AuditRow) -> str:
        return format_time(row.at)

    @admin.display(description="what")
    def what(self, row: AuditRow) -> str:
        return _LABELS.get(row.kind, row.kind)

    @admin.display(description="said")
    def said(self, row: AuditRow) -> str:
        changed = "; ".join(f"{name}: {_short(was)} → {_short(now)}" for name, (was, now) in _changes(row))
        return " ".join(filter(None, (row.act, changed, row.reason)))

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Return the columns. The subject and the order are links if the user may view their pages."""

        @admin.display(description="which")
        def which(row: AuditRow) -> SafeString | str:
            return self._link(request, row.subject_type, row.subject_id, row.subject)

        @admin.display(description="order")
        def order(row: AuditRow) -> SafeString | str:
            if row.order_id is None:
                return "–"
            return self._link(request, "orders.order", str(row.order_id), f"…{str(row.order_id)[-8:]}")

        links = {"subject": which, "order_id": order}
        return [links.get(str(name), name) for name in self.list_display]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[AuditRow], search_term: str
    ) -> tuple[QuerySet[AuditRow], bool]:
        """Search by the order's id, else by that of the changed row, else by who. Each has an index."""
        if not (text := search_term.strip()):
            return queryset, False
        if (id := parse_uuid(text)) and (of_order := queryset.filter(order_id=id)).exists():
            return of_order, False
        of_row = queryset.filter(subject_id=str(id or text))
        return (of_row if of_row.exists() else queryset.filter(who=text)), False

    def _link(self, request: HttpRequest, label: str, id: str, text: str) -> SafeString | str:
        """Return the text, as a link to the row's page if the user may view one."""
        try:
            model = apps.get_model(label) if id and label else None
        except LookupError:  # of a newer or older release
            model = None
        page = self.admin_site._registry.get(model) if model else None
        if model is None or page is None or not page.has_view_permission(request):
            return text
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}_change"
        try:
            return format_html('<a href="{}">{}</a>', reverse(name, args=[id]), text)
        except NoReverseMatch:
            return text


def _changes(row: AuditRow) -> Iterable[tuple[str, list[Any]]]:
    return (row.changes or {}).items()


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[:80] or "(empty)"
