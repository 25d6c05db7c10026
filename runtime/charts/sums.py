"""Sum each finished minute into `traffic_sums`, and read the sums for the admin's charts.

Each app declares in its `sums.py` what to sum, with `register_reader` and `register_sampler`. The task
`sum_minutes` runs once a minute. A run replaces the rows that it sums again: runs may overlap, repeat and be
interrupted. Each run sums the newest minutes again, for webhooks that report a delivery some seconds later.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import json
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from django.db import connections, transaction
from django.db.models import Max, Q
from django.db.models.functions import Now

from runtime.charts.duration_histogram import Spread, add_spreads, quantile
from runtime.database import replica
from runtime.database.clock import read_database_time
from runtime.models import Heartbeat, TrafficSum

MINUTE, HOUR = dt.timedelta(minutes=1), dt.timedelta(hours=1)
#: The heartbeat of the sums.
SUMMED = "sums"
#: How many of the newest minutes each run sums again.
AGAIN = 5
#: How many minutes one run sums at most. Six runs catch up after an outage of a day.
MOST = 240
#: How far back the first run begins, and how long minutes and hours are kept.
FIRST, KEEP_MINUTES, KEEP_HOURS = dt.timedelta(hours=1), dt.timedelta(days=3), dt.timedelta(days=400)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The times [since, until) by the database's clock, in whole steps of `span` seconds."""

    since: dt.datetime
    until: dt.datetime
    span: int

    def parameters(self) -> dict[str, Any]:
        """Return the window as a statement's parameters: since, until, span (an interval)."""
        return {"since": self.since, "until": self.until, "span": dt.timedelta(seconds=self.span)}


#: SQL that rounds a time down to a step of a window: `STEP.format("sent_at")`.
STEP = "date_bin(%(span)s, {}, '2000-01-01 00:00+00')"


class Cell(NamedTuple):
    """`number` more of `series` in the step from `starts_at` on. With a `bucket`, these are durations."""

    starts_at: dt.datetime
    series: str
    number: int
    bucket: int | None = None


class CellQuery(NamedTuple):
    """A statement whose columns are those of `Cell`, and the cells that each of its rows stands for.

    Its parameters are those of the window and `more`. A name there has one value in all queries of a window.
    """

    sql: str
    more: Mapping[str, Any] = MappingProxyType({})
    split: Callable[[Cell], Iterable[Cell]] = lambda cell: [cell]


Reader = Callable[[Window], CellQuery]
Sampler = Callable[[], Mapping[str, int]]
_readers: list[Reader] = []
_samplers: list[Sampler] = []


def register_reader(read: Reader) -> Reader:
    """Register a function that returns the query of the cells of a window of time.

    It may be read again for the same window. Then the new cells replace the old ones.
    """
    _readers.append(read)
    return read


def register_sampler(sample: Sampler) -> Sampler:
    """Register a function that returns present numbers. It is called once for the newest minute."""
    _samplers.append(sample)
    return sample


@dataclasses.dataclass(frozen=True, slots=True)
class Sums:
    """The sums of one step of time, or of several."""

    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    spreads: Mapping[str, Spread] = dataclasses.field(default_factory=dict)
    samples: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @classmethod
    def total(cls, parts: Iterable[Self]) -> Self:
        counts, samples = Counter[str](), Counter[str]()
        spreads = defaultdict[str, list[Spread]](list)
        for part in parts:
            counts.update(part.counts)
            samples.update(part.samples)
            for series, spread in part.spreads.items():
                spreads[series].append(spread)
        return cls(counts, {series: add_spreads(durations) for series, durations in spreads.items()}, samples)

    def count(self, series: str) -> int:
        """Return the number of a series with its parts. "sent" includes "sent:<provider>"."""
        return sum(
            number for name, number in self.counts.items() if name == series or name.startswith(f"{series}:")
        )

    def quantile(self, series: str, *, share: float) -> float | None:
        """Return the seconds that `share` of the durations of a series do not exceed."""
        return quantile(self.spreads.get(series, {}), share=share)


#: The sums of steps of time, oldest first. None means that the step was not summed.
Steps = Sequence[tuple[dt.datetime, Sums | None]]


def sum_minutes() -> int:
    """Sum the minutes since the last run and again the `AGAIN` newest, at most `MOST`. Return how many."""
    end = read_database_time().replace(second=0, microsecond=0)
    last = TrafficSum.objects.filter(span=TrafficSum.MINUTE).aggregate(last=Max("start"))["last"]
    since = end - FIRST if last is None else max(last - (AGAIN - 1) * MINUTE, end - KEEP_MINUTES)
    until = min(end, since + MOST * MINUTE)
    Heartbeat.beat(name=SUMMED)
    if since >= until:
        return 0
    minutes = read_window(Window(since=since, until=until, span=TrafficSum.MINUTE))
    if until == end:
        newest = minutes[end - MINUTE]
        minutes[end - MINUTE] = dataclasses.replace(newest, samples=_sample_all())
    store(TrafficSum.MINUTE, minutes)
    _sum_hours(since=since, until=until)
    for span, kept in ((TrafficSum.MINUTE, KEEP_MINUTES), (TrafficSum.HOUR, KEEP_HOURS)):
        TrafficSum.objects.filter(span=span, start__lt=end - kept).delete()
    return len(minutes)


def read_window(window: Window) -> dict[dt.datetime, Sums]:
    """Read every declared query, and return the sums of each step of a window, also empty ones."""
    step = dt.timedelta(seconds=window.span)
    counts: dict[dt.datetime, Counter[str]] = {}
    spreads: dict[dt.datetime, dict[str, dict[str, int]]] = {}
    start = window.since
    while start < window.until:
        counts[start], spreads[start] = Counter(), {}
        start += step
    for cell in _read_all(window):
        if cell.starts_at not in counts:
            continue
        if cell.bucket is None:
            counts[cell.starts_at][cell.series] += cell.number
        else:
            spread = spreads[cell.starts_at].setdefault(cell.series, {})
            spread[str(cell.bucket)] = spread.get(str(cell.bucket), 0) + cell.number
    return {start: Sums(counts[start], spreads[start]) for start in counts}


def _read_all(window: Window) -> Iterator[Cell]:
    """Yield the cells of every declared reader, whose queries are one statement.

    All readers use indexes. If a column is nearly always NULL, like `bounced_at`, an expression over it has
    no statistics, and the planner would read a whole partition. `enable_seqscan = off` prevents that.
    """
    queries = [read(window) for read in _readers]
    parts = [f"SELECT {number}, part.* FROM ({query.sql}) AS part" for number, query in enumerate(queries)]  # noqa: S608
    parameters = window.parameters()
    for query in queries:
        parameters |= query.more
    database = replica.alias()
    with transaction.atomic(using=database), connections[database].cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(" UNION ALL ".join(parts), parameters)
        rows = cursor.fetchall()
        cursor.execute("SET LOCAL enable_seqscan = on")
    for number, *values in rows:
        yield from queries[number].split(Cell(*values))


def _sample_all() -> dict[str, int]:
    samples: dict[str, int] = {}
    for sample in _samplers:
        samples |= sample()
    return samples


def _sum_hours(*, since: dt.datetime, until: dt.datetime) -> None:
    """Sum the hours that overlap [since, until) from their stored minutes."""
    first = since.replace(minute=0)
    minutes = TrafficSum.objects.filter(span=TrafficSum.MINUTE, start__gte=first, start__lt=until + HOUR)
    hours = defaultdict[dt.datetime, list[Sums]](list)
    for row in minutes:
        hours[row.start.replace(minute=0)].append(Sums(row.counts, row.spreads, row.samples))
    store(TrafficSum.HOUR, {hour: Sums.total(parts) for hour, parts in hours.items() if hour < until})


def store(span: int, steps: Mapping[dt.datetime, Sums]) -> None:
    """Replace the stored sums. Keep stored samples: no run can take them again."""
    with connections["default"].cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO traffic_sums AS old (span, start, counts, spreads, samples)
            SELECT %s, start, counts, spreads, samples
            FROM unnest(%s::timestamptz[], %s::jsonb[], %s::jsonb[], %s::jsonb[])
                AS new (start, counts, spreads, samples)
            ORDER BY start
            ON CONFLICT (span, start) DO UPDATE SET counts = excluded.counts, spreads = excluded.spreads,
                samples = old.samples || excluded.samples
            """,
            [
                span,
                list(steps),
                [json.dumps(sums.counts) for sums in steps.values()],
                [json.dumps(sums.spreads) for sums in steps.values()],
                [json.dumps(sums.samples) for sums in steps.values()],
            ],
        )


def add_to_hour(numbers: Mapping[str, int]) -> None:
    """Add to the samples of the present hour what no reader finds in a table later."""
    with connections["default"].cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO traffic_sums AS old (span, start, counts, spreads, samples)
            VALUES (%s, date_trunc('hour', statement_timestamp(), 'UTC'), '{}', '{}', %s)
            ON CONFLICT (span, start) DO UPDATE SET samples = old.samples || (
                SELECT jsonb_object_agg(series, number::bigint + coalesce((old.samples->>series)::bigint, 0))
                FROM jsonb_each_text(excluded.samples) AS new (series, number))
            """,
            [TrafficSum.HOUR, json.dumps(numbers)],
        )


def read_last_day() -> Mapping[str, int]:
    """Return the samples of the present hour and of the 23 before it, by series."""
    hours = TrafficSum.objects.filter(span=TrafficSum.HOUR, start__gt=Now() - 24 * HOUR)
    return Sums.total(Sums(samples=samples) for samples in hours.values_list("samples", flat=True)).samples


def read_running(*, newest: dt.datetime | None, now: dt.datetime) -> dict[dt.datetime, Sums]:
    """Sum the minute that runs, and the one before it unless it is the `newest` that is stored."""
    running = now.replace(second=0, microsecond=0)
    since = running if newest == running - MINUTE else running - MINUTE
    return read_window(Window(since=since, until=running + MINUTE, span=TrafficSum.MINUTE))


def read_spans(*, since: Mapping[int, dt.datetime], until: dt.datetime) -> dict[int, dict[dt.datetime, Sums]]:
    """Return the stored sums by span and start of each step. `since` has the first start of each span."""
    wanted = functools.reduce(operator.or_, (Q(span=span, start__gte=start) for span, start in since.items()))
    rows = TrafficSum.objects.filter(wanted, start__lt=until).order_by("span", "start")
    by_span: dict[int, dict[dt.datetime, Sums]] = {span: {} for span in since}
    for span, start, counts, spreads, samples in rows.values_list(
        "span", "start", "counts", "spreads", "samples"
    ):
        by_span[span][start] = Sums(counts, spreads, samples)
    return by_span
