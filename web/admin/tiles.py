"""The parts of the admin's first page: tiles about work for a person, series of charts, and panels.

Each app declares its parts in its admin modules with `@attention`, `show_series` and `@panel`. Each count
stops at `COUNT_LIMIT`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from django.core.exceptions import EmptyResultSet
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString

from runtime.charts.sums import Steps, Sums, read_running, read_spans
from runtime.conditions import ActiveCondition, Condition, Facts, decide, read_facts
from runtime.database import replica
from runtime.database.clock import read_database_time
from runtime.models import TrafficSum

#: Counts stop here: a count of a million rows would take seconds.
COUNT_LIMIT = 10_000


Sql = tuple[str, Sequence[Any]]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """A number with a link to its list: `words`, the count of `rows`, or the sum of its conditions' numbers.

    The page highlights it if `conditions` has any, and calls it well if it has neither words nor a count.
    """

    label: str
    url: str
    conditions: Sequence[ActiveCondition] = ()
    rows: QuerySet[Any] | Sql | None = None
    words: str = ""
    help: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A chart. `list_url` returns the address of its list; `{age}` in it becomes 1h, 24h or 31d."""

    place: int
    name: str
    title: str
    permission: str
    list_url: Callable[[], str]
    tone: str  # the class of its colour: good, bad, warn, plain
    has_durations: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Range:
    """A period of the charts: the last `length`, in bars of `step`."""

    title: str
    age: str
    length: dt.timedelta
    step: dt.timedelta
    span: int


RANGES = {
    "hour": Range("Last hour", "1h", dt.timedelta(hours=1), dt.timedelta(minutes=1), TrafficSum.MINUTE),
    "day": Range("Last day", "24h", dt.timedelta(days=1), dt.timedelta(minutes=15), TrafficSum.MINUTE),
    "month": Range("Last 30 days", "31d", dt.timedelta(days=30), dt.timedelta(hours=6), TrafficSum.HOUR),
}


Attention = Callable[[HttpRequest], Iterable[Tile]]
Panel = Callable[[HttpRequest], SafeString]
#: The parts of all apps, which operations.admin.front shows: tiles and panels with their places, and charts.
ATTENTION: list[tuple[int, Attention]] = []
PANELS: list[tuple[int, Panel]] = []
SERIES: list[Series] = []


def attention(place: int) -> Callable[[Attention], Attention]:
    """Show the tiles that the decorated function returns for a request. It checks the permissions."""

    def register(source: Attention) -> Attention:
        ATTENTION.append((place, source))
        return source

    return register


def panel(place: int) -> Callable[[Panel], Panel]:
    """Show the HTML that the decorated function returns. It checks the permissions."""

    def register(source: Panel) -> Panel:
        PANELS.append((place, source))
        return source

    return register


def show_series(series: Series) -> None:
    """Show a chart of a series that an app's `sums.py` sums."""
    SERIES.append(series)


def sentences(url: str, conditions: Iterable[ActiveCondition]) -> Iterator[Tile]:
    """Return a tile with the sentence of each condition."""
    return (
        Tile(
            label=condition.sentence,
            url=url,
            conditions=[condition],
            words="!",
            help=f"See the alert {condition.code}.",
        )
        for condition in conditions
    )


class FrontPage:
    """The time, conditions and sums that the parts of one page share. They are read once."""

    def __init__(self, chosen: str) -> None:
        self.range = RANGES.get(chosen, RANGES["hour"])

    @classmethod
    def of(cls, request: HttpRequest) -> FrontPage:
        """Return the request's page. `?range=` selects the period of the charts."""
        if not hasattr(request, "front_view"):
            request.front_view = cls(request.GET.get("range", "hour"))  # type: ignore[attr-defined]
        view: FrontPage = request.front_view  # type: ignore[attr-defined]
        return view

    @functools.cached_property
    def now(self) -> dt.datetime:
        return read_database_time()

    @functools.cached_property
    def facts(self) -> Facts:
        return read_facts(now=self.now)

    @functools.cached_property
    def _conditions(self) -> list[ActiveCondition]:
        return decide(self.facts)

    def active(self, *conditions: Condition[Any]) -> list[ActiveCondition]:
        """Return the active ones of these conditions, by PostgreSQL's rows."""
        return [active for active in self._conditions if active.condition in conditions]

    @functools.cached_property
    def _sums(self) -> dict[int, dict[dt.datetime, Sums]]:
        wanted = {RANGES["day"], self.range} - {RANGES["hour"]}
        return read_spans(
            since={period.span: self.now - period.length - period.step for period in wanted}, until=self.now
        )

    @functools.cached_property
    def _running(self) -> dict[dt.datetime, Sums]:
        newest = max(self._sums[TrafficSum.MINUTE], default=None)
        return read_running(newest=newest, now=self.now)

    def steps(self, shown: Range) -> Steps:
        """Return the sums of each bar of a range, oldest first, to the minute that runs.

        A bar without sums has None.
        """
        rows = self._sums[shown.span]
        count = int(shown.length / shown.step)
        last = self.now - dt.timedelta(seconds=self.now.timestamp() % shown.step.total_seconds())
        first = last - (count - 1) * shown.step
        parts: dict[int, list[Sums]] = {}
        for start, sums in (*rows.items(), *self._running.items()):
            parts.setdefault((start - first) // shown.step, []).append(sums)
        return [
            (first + number * shown.step, Sums.total(parts[number]) if number in parts else None)
            for number in range(count)
        ]


def count_each(rows: Iterable[QuerySet[Any] | Sql]) -> list[int]:
    """Count the rows of each query, in one statement and up to `COUNT_LIMIT` + 1."""
    counts: list[str] = []
    values: list[Any] = []
    for query in rows:
        try:
            sql, params = (
                query if isinstance(query, tuple) else query.order_by().values("pk").query.sql_with_params()
            )
        except EmptyResultSet:  # of a user who is bound to no shop
            counts.append("0")
            continue
        counts.append(
            f"(SELECT count(*) FROM (SELECT 1 FROM ({sql}) AS listed LIMIT {COUNT_LIMIT + 1}) AS few)"  # noqa: S608
        )
        values += params
    if not counts:
        return []
    with connections[replica.alias()].cursor() as cursor:
        cursor.execute("SELECT " + ", ".join(counts), values)
        return list(cursor.fetchone())


def bounded(number: int) -> str:
    """Format a count, with a plus if it reached `COUNT_LIMIT`.

    >>> bounded(1200), bounded(10_001)
    ('1,200', '10,000+')
    """
    return f"{COUNT_LIMIT:,}+" if number >= COUNT_LIMIT else f"{number:,}"
