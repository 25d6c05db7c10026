"""A filter by two dates, by the time in the rows' ids or by a column with a time."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from runtime.database import periods


class PeriodFilter(admin.ListFilter):
    """Filters from a date to the end of another by a range of ids, or of a subclass's column.

    The dates are those of the person's time zone.
    """

    title = "date"
    template = "admin/period_filter.html"
    names = ("since", "until")
    column = "id"

    def __init__(
        self,
        request: HttpRequest,
        params: dict[str, Any],
        model: type[Model],
        model_admin: admin.ModelAdmin[Any],
    ) -> None:
        super().__init__(request, params, model, model_admin)
        values = {name: params.pop(name, "") for name in self.names}
        # Django passes lists.
        self.values = {
            name: str(value[-1] if isinstance(value, list) else value) for name, value in values.items()
        }
        #: The dates in the form.
        self.dates = {
            name: str(timezone.localdate(moment - dt.timedelta(microseconds=name == "until")))
            for name, value in self.values.items()
            if (moment := periods.read_time(value, is_end=name == "until"))
        }
        self.used_parameters = {name: value for name, value in self.values.items() if value}
        #: The other parameters of the address, which the form must keep.
        self.others = [(name, value) for name, value in request.GET.items() if name not in (*self.names, "p")]

    @property
    def chosen(self) -> str:
        """The dates in words."""
        since, until = (self.dates.get(name, "") for name in self.names)
        if since and until:
            return since if since == until else f"{since} to {until}"
        return f"since {since}" if since else f"until {until}" if until else "any"

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str | None]:
        return list(self.names)

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Yield one choice, which shows whether a date is set. The template has a form instead of links."""
        yield {
            "selected": not self.used_parameters,
            "query_string": changelist.get_query_string(remove=list(self.names)),
            "display": "Any date",
        }

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return periods.narrow_to_period(queryset, self.values, now=timezone.now(), column=self.column)
