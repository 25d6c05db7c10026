"""The audit log: every act of a user in the admin, with filters and CSV. The page is read-only."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponseBase
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from web.admin import reading
from web.admin.acts import record_download
from web.admin.base import AgeFilter, TriageAdmin
from web.admin.csv import csv_response, rows_by_key
from web.admin.menu import MenuItem
from web.admin.page_limits import limit_page

ACTS = {1: "added", 2: "changed", 3: "deleted"}


class TimeFilter(AgeFilter):
    """Filters by the time of the act, which has an index."""

    column = "action_time"


class KindFilter(admin.SimpleListFilter):
    """Filters by the changed object's model. Its choices need no query."""

    title, parameter_name = "what", "what"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        models = [(model._meta.label_lower, str(model._meta.verbose_name)) for model in admin.site._registry]
        return sorted(models, key=lambda model: model[1])

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        label = self.value()
        if label not in dict(self.lookup_choices):
            return queryset
        app, _, model = str(label).partition(".")
        return queryset.filter(content_type=ContentType.objects.get_by_natural_key(app, model))


@admin.register(LogEntry)
class AuditAdmin(TriageAdmin[LogEntry]):
    """Lists acts, newest first, by the primary key, which grows with time."""

    menu = MenuItem(80, "Audit log")
    empty_text = "This list shows each act in the admin, such as a resent e-mail or a forced provider."
    list_display = ["when", "user", "act", "what", "object_repr", "message"]
    list_display_links = None
    list_filter = [TimeFilter, KindFilter]
    search_fields = ["object_id"]
    search_help_text = "The id of the changed object, or a user's name."

    @admin.display(description="time (UTC)")
    def when(self, entry: LogEntry) -> str:
        return f"{entry.action_time:%Y-%m-%d %H:%M:%S}"

    @admin.display(description="act")
    def act(self, entry: LogEntry) -> str:
        return ACTS.get(entry.action_flag, "–")

    @admin.display(description="what")
    def what(self, entry: LogEntry) -> str:
        return entry.content_type.name if entry.content_type else "–"

    @admin.display(description="said")
    def message(self, entry: LogEntry) -> str:
        return entry.get_change_message()

    def get_list_select_related(self, request: HttpRequest) -> list[str]:
        return ["user", "content_type"]

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Return the columns. The object is a link if the user may view its page."""

        @admin.display(description="which")
        def which(entry: LogEntry) -> SafeString | str:
            url = self._url(entry, request)
            return format_html('<a href="{}">{}</a>', url, entry.object_repr) if url else entry.object_repr

        return [which if name == "object_repr" else name for name in self.list_display]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[LogEntry], search_term: str
    ) -> tuple[QuerySet[LogEntry], bool]:
        """Search by the object's id or the user's name. Both have an index."""
        if not (text := search_term.strip()):
            return queryset, False
        by_object = queryset.filter(object_id=text)
        return (by_object if by_object.exists() else queryset.filter(user__username=text)), False

    def get_urls(self) -> list[URLPattern]:
        page = self.admin_site.admin_view(self.csv_view)
        return [path("csv/", page, name="admin_logentry_csv"), *super().get_urls()]

    @limit_page("download")
    def csv_view(self, request: HttpRequest) -> HttpResponseBase:
        """Answer with the filtered list as CSV."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        try:
            changelist, rows = reading.read(request, lambda: self.filtered(request))
        except IncorrectLookupParameters as error:
            raise Http404 from error
        record_download(request, changelist)
        return csv_response(
            filename="audit-log",
            header=["time", "user", "act", "what", "id", "which", "said"],
            rows=(
                (
                    entry.action_time,
                    entry.user.get_username(),
                    self.act(entry),
                    self.what(entry),
                    entry.object_id,
                    entry.object_repr,
                    entry.get_change_message(),
                )
                for entry in rows_by_key(queryset=rows, may_be_late=reading.may_be_late(request))
            ),
        )

    def _url(self, entry: LogEntry, request: HttpRequest) -> str:
        """Return the address of the object's page, or an empty string if the user may not view one."""
        kind = entry.content_type
        page = self.admin_site._registry.get(kind.model_class()) if kind else None  # type: ignore[arg-type]
        if kind is None or page is None or not entry.object_id or not page.has_view_permission(request):
            return ""
        try:
            return reverse(f"admin:{kind.app_label}_{kind.model}_change", args=[entry.object_id])
        except NoReverseMatch:
            return ""
