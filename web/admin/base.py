"""The base of admin pages over big tables: read-only, without exact counts, filtered by age.

A page reads no more rows than it shows.
"""

from __future__ import annotations

import copy
import datetime as dt
import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, cast

import structlog
from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import SEARCH_VAR, ChangeList
from django.core.exceptions import EmptyResultSet, PermissionDenied
from django.core.paginator import Paginator
from django.db import DataError, connections, models
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.http.response import HttpResponseBase
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString

from runtime.database import periods
from runtime.database.ids import parse_uuid
from web.admin import reading
from web.admin.acts import AuditedPage, record_download
from web.admin.csv import csv_response, rows_by_key
from web.admin.page_limits import TURNS, limit_page
from web.admin.reading import rendered
from web.admin.rights import shops_of
from web.admin.search import HELP, Term, is_cut

log = structlog.get_logger(__name__)

EXACT_BELOW = 10_000

Row = TypeVar("Row", bound=models.Model)


class EstimatingPaginator(Paginator):  # type: ignore[type-arg]
    """Uses the planner's estimate as the number of rows, and counts only if that is small."""

    @cached_property
    def count(self) -> int:
        """Return the estimate if it is above `EXACT_BELOW`, else count up to that number.

        A list counts first, and PostgreSQL may refuse a filter's value, such as a NUL character or a wrong
        regular expression. Raise `IncorrectLookupParameters` then, which Django answers like any other wrong
        lookup.
        """
        rows = cast("QuerySet[Any]", self.object_list).order_by()
        try:
            sql, params = rows.values("pk").query.sql_with_params()
        except EmptyResultSet:  # a search that can find nothing needs no query
            return 0
        try:
            with connections[rows.db].cursor() as cursor:
                cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", params)
                (answer,) = cursor.fetchone()
        except DataError as error:
            raise IncorrectLookupParameters from error
        plan = json.loads(answer) if isinstance(answer, str) else answer
        estimate = int(plan[0]["Plan"]["Plan Rows"])
        return estimate if estimate > EXACT_BELOW else rows.values("pk")[:EXACT_BELOW].count()


class ChoiceFilter(admin.SimpleListFilter):
    """Filters by one column whose values are known without a query."""

    is_tabs = False

    #: Whether the values are sources of orders. Then a bound user is offered their own.
    has_sources = False

    def choices_of(self) -> Iterable[str]:
        """Return the values in the order of the page."""
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        values = self.choices_of()
        if self.has_sources:
            values = [value for value in values if shops_of(request).has(value)]
        return [(value, value.replace("_", " ")) for value in values]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Row]) -> QuerySet[Row]:
        if self.value() in dict(self.lookup_choices):
            return queryset.filter(**{str(self.parameter_name): self.value()})
        return queryset


class ChosenFilter(admin.SimpleListFilter):
    """The rows with the ids in the address, to which a job's page leads. Shown only if there are some."""

    title, parameter_name = "choice", "ids"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        chosen = request.GET.get("ids", "")
        return [(chosen, "left alone by a job")] if chosen else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Row]) -> QuerySet[Row]:
        if not (chosen := self.value()):
            return queryset
        return queryset.filter(pk__in=[id for text in chosen.split(",") if (id := parse_uuid(text))])


class AgeFilter(admin.SimpleListFilter):
    """Filters by ranges of the id, which contains the time and lets PostgreSQL prune partitions.

    Subclasses may name a column with a time instead.
    """

    title = "age"
    parameter_name = "age"
    column = "id"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("1h", "last hour"), ("24h", "last 24 hours"), ("7d", "last 7 days"), ("31d", "last 31 days")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Row]) -> QuerySet[Row]:
        params = {"age": self.value() or ""}
        return periods.narrow_to_period(queryset, params, now=timezone.now(), column=self.column)


class ListAdmin(AuditedPage[Row]):
    """A list of the user's shops, that takes only its declared filters from the address.

    Django's own lists filter by any column, and their answers would tell what a hidden column contains.
    """

    #: The models of further ids in the addresses of the page's views, by the parameter's name.
    models_of_ids: Mapping[str, type[models.Model]] = {}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Row]:
        return self.in_shops(request, super().get_queryset(request))

    def in_shops(self, request: HttpRequest, rows: QuerySet[Row]) -> QuerySet[Row]:
        """Filter the rows of the shops to which the user is bound."""
        return shops_of(request).only(rows)

    def has_row(self, request: HttpRequest, parameter: str, id: object) -> bool:
        """Return whether an id in a view's address is that of a row that a bound user may see."""
        if parameter in ("id", "object_id"):
            rows: QuerySet[Any] = self.get_queryset(request)
        elif model := self.models_of_ids.get(parameter):
            rows = shops_of(request).only(model._default_manager.all())
        else:
            return False
        return (key := parse_uuid(str(id))) is not None and rows.filter(pk=key).exists()

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        filters: list[Any] = [] if request is None else list(self.get_list_filter(request))
        return any(lookup in (getattr(each, "names", ()) or [each.parameter_name]) for each in filters)


class TriageAdmin(ListAdmin[Row]):
    """A read-only list that is fast on millions of rows."""

    paginator = EstimatingPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50
    list_max_show_all = 50
    #: Of the list and of its CSV file, as for `read_page`.
    ordering = ["-id"]
    list_select_related = False
    #: The text of an empty list.
    empty_text = ""
    change_list_template = "admin/triage_list.html"
    #: The columns of the list's CSV file. Without columns the list offers no file.
    csv_columns: tuple[str, ...] = ()

    def get_urls(self) -> list[URLPattern]:
        name = f"{self.opts.app_label}_{self.opts.model_name}_csv"
        return [path("csv/", self.admin_site.admin_view(self.csv_view), name=name), *super().get_urls()]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Add what is searched, and the address of the CSV file with the same filters and search."""
        context = dict(extra_context or {})
        if self.search_help_text == HELP:
            context["searched"] = Term.of(request.GET.get(SEARCH_VAR, "")).says
            context["is_cut"] = functools.partial(is_cut, request)
        if self.csv_columns and request.method == "GET":
            page = reverse(f"admin:{self.opts.app_label}_{self.opts.model_name}_csv")
            query = request.GET.copy()
            query.pop("p", None)
            context["csv_url"] = f"{page}?{query.urlencode()}"

        def read() -> HttpResponse:
            return reading.read(
                request, lambda: rendered(super(TriageAdmin, self).changelist_view(request, dict(context)))
            )

        return TURNS.answer(request, "search", read) if request.GET.get(SEARCH_VAR) else read()

    @limit_page("download")
    def csv_view(self, request: HttpRequest) -> HttpResponseBase:
        """Answer with all rows of the filtered list as a CSV file."""
        if not (self.csv_columns and self.has_view_permission(request)):
            raise PermissionDenied
        try:
            changelist, rows = reading.read(request, lambda: self.filtered(request))
        except IncorrectLookupParameters as error:
            raise Http404 from error
        record_download(request, changelist)
        log.info("list downloaded", list=self.opts.label, filters=sorted(request.GET), user=request.user.pk)
        return csv_response(
            filename=str(self.opts.db_table),
            header=self.csv_columns,
            rows=(
                [getattr(row, column) for column in self.csv_columns]
                for row in rows_by_key(
                    queryset=rows.only(*self.csv_columns),
                    order=list(map(str, self.ordering)),
                    may_be_late=reading.may_be_late(request),
                )
            ),
        )

    def filtered(self, request: HttpRequest) -> tuple[ChangeList, QuerySet[Row]]:
        """Return the list and all of its rows, for a CSV file."""
        changelist = self.get_changelist_instance(request)
        return changelist, changelist.get_queryset(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Row | None = None) -> bool:
        return False  # actions check other permissions

    def has_delete_permission(self, request: HttpRequest, obj: Row | None = None) -> bool:
        return False  # old rows are removed with their partition


class RefreshedPage(admin.ModelAdmin[Row]):
    """The page of a row, of which admin.js refreshes a part: `?part=1` answers with this part alone."""

    part_template: str

    def read_part(self, request: HttpRequest, row: Row) -> dict[str, Any]:
        """Return what the part shows."""
        raise NotImplementedError

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        id = parse_uuid(object_id)
        if "part" not in request.GET or id is None:
            return super().change_view(request, object_id, form_url, extra_context)
        row = self.get_object(request, str(id))
        if row is None:
            raise Http404
        if not self.has_view_permission(request, row):
            raise PermissionDenied
        return TemplateResponse(request, self.part_template, self.read_part(request, row))


def answer_with_page(
    request: HttpRequest, *, url: str, view: Callable[[HttpRequest], HttpResponse]
) -> HttpResponse:
    """Answer a POST with the page at `url`, because a message has a secret that is shown only once.

    After a redirect, the message would have been in a cookie. The script of the page corrects the browser's
    address, so that a reload posts nothing. The first page answers a person who may add, and not view.
    """
    page = copy.copy(request)
    page.GET, page.POST = QueryDict(), QueryDict()
    page.method, page.path, page.path_info = "GET", url, url
    try:
        answer = view(page)
    except PermissionDenied:
        url = reverse("admin:index")
        page.path, page.path_info = url, url
        answer = admin.site.index(page)
    if isinstance(answer, TemplateResponse):
        answer.context_data = {**(answer.context_data or {}), "page_url": url}
    return answer


def pill(status: str, word: str = "") -> SafeString:
    """Return a state as a coloured word."""
    return format_html('<span class="pill pill-{}">{}</span>', status, word or status.replace("_", " "))


def format_time(at: dt.datetime) -> str:
    """Write a time as every page does, in the person's time zone (`web.admin.zones`)."""
    return f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S}"


def describe_distance(when: dt.datetime) -> str:
    """Return how long ago or how soon a time is, such as "12 s ago" or "in 3 h"."""
    seconds = (timezone.now() - when).total_seconds()
    span = abs(seconds)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if span >= size or size == 1:
            text = f"{span // size:.0f} {unit}"
            break
    return f"{text} ago" if seconds >= 0 else f"in {text}"


def show_time(when: dt.datetime | None) -> SafeString | str:
    """Return a time, with how long ago or how soon it is, and with that of UTC, on hover."""
    if when is None:
        return "–"
    return format_html(
        '<time datetime="{}" title="{}, {} UTC">{}</time>',
        when.isoformat(timespec="seconds"),
        describe_distance(when),
        f"{when.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S}",
        format_time(when),
    )
