"""The conditions that need a person, the alerts about them, and the facts that show whether they hold.

An app declares its conditions in its `conditions.py`: the fact (a `Query`, or another `Source`), the limit, a
sentence for people, and the alert. From these declarations come `manage.py status`, the admin's first page,
the metric `orderpost_condition`, and with `manage.py status --rules` the rules of the alerts and the first
lines of their paragraphs in docs/guides/alerts.md.

1. `read_facts` runs the SELECTs of all queries in one statement.
2. `decide` compares the facts with the limits, and returns an `ActiveCondition` for each that is beyond.
3. A condition is active at once. Its alert fires after its `wait`.

A SELECT that counts stops after *reading* `MOST` rows, which takes milliseconds even in an outage. Ages are
seconds by the database's clock, or 0.0 if there is no such row.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections
from django.utils import timezone
from prometheus_client.core import GaugeMetricFamily

from runtime.database import replica
from runtime.models import Heartbeat, Pause
from runtime.telemetry.metrics import Gauge, Values, gauge

#: The tag of the checks whose warnings the admin's first page shows.
PRODUCTION = "production"
MOST = 10_000
HOUR, DAY = 3600.0, 86_400.0

Row = dict[str, Any]
Fact = TypeVar("Fact")
Made = TypeVar("Made", covariant=True)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Source(Generic[Made]):
    """The source of one fact. Code that asks a broker adds the fact to `Facts` itself; see also `Query`.

    An optional source exists only in some installations, and MetricMissing does not watch its conditions.
    """

    name: str
    is_optional: bool = False


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Query(Source[Made]):
    """A source in PostgreSQL. `read_facts` runs the SELECTs of all of them as one statement.

    `select` returns the SELECT for a time, and `read` makes the fact from its rows and the same time. The
    rows come as JSON: times and ids are strings. A replica is not asked for facts about the server.
    """

    select: Callable[[dt.datetime], str]
    read: Callable[[Sequence[Row], dt.datetime], Made]
    is_about_server: bool = False


class Facts:
    """The known facts by their sources."""

    def __init__(self, values: Mapping[Source[Any], Any] | None = None) -> None:
        self._known = dict(values or {})

    def __contains__(self, source: Source[Any]) -> bool:
        return source in self._known

    def __getitem__(self, source: Source[Fact]) -> Fact:
        if source not in self._known:
            raise KeyError(f"Nothing is known about {source.name}.")
        fact: Fact = self._known[source]
        return fact

    def adding(self, source: Source[Fact], fact: Fact) -> Facts:
        """Return these facts and one more."""
        return Facts({**self._known, source: fact})


class Counted(float):
    """A number that a sentence names with its noun.

    >>> ["{0:order waits|orders wait}".format(Counted(number)) for number in (1, 1200, MOST)]
    ['1 order waits', '1,200 orders wait', '10,000 or more orders wait']
    """

    def __format__(self, words: str) -> str:
        singular, _, plural = words.partition("|")
        number = f"{MOST:,} or more" if self >= MOST else f"{float(self):,.0f}"
        return f"{number} {singular if float(self) == 1 else plural}"


class Measurement(NamedTuple):
    """A measured number, its subject, and further values for the sentence."""

    number: float
    subject: str = ""  # the provider, topic, table or part; "" if there is only one
    words: Mapping[str, object] = {}


class ActiveCondition(NamedTuple):
    """A condition whose `number` is beyond its `limit`."""

    condition: Condition[Any]
    subject: str
    number: float
    limit: float
    sentence: str

    @property
    def code(self) -> str:
        return self.condition.code


@dataclasses.dataclass(frozen=True)
class Alert:
    """The alert of a condition that has held for `wait`.

    `when` is its summary and the beginning of its paragraph in docs/guides/alerts.md. `also` is a clause of
    PromQL that must hold as well, if a fact of another source matters. `shows` is the end of its description,
    a template of Prometheus that queries numbers.
    """

    priority: Literal["P1", "P2", "P3"]
    wait: str
    when: str
    also: str = ""
    shows: str = ""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Condition(Generic[Fact]):
    """A state that needs a person, with the rule that finds it in a fact.

    `measure` returns the numbers that `limit` is compared with. A limit that is a function gets the subject,
    and may read settings. `sentence` is a format of `number` (`Counted`), `subject`, and the measurement's
    words. `do` follows it, or the word `do` of a measurement that knows the cause. `code` is the name of the
    alert. Conditions with a lower `place` are more severe. During a pause of the part `paused_by` the
    condition is not active. `page` is the admin's list that the first page links to, such as
    "events.domainevent?state=failing"; if it is empty, a tile shows the condition.

    Conditions of one code have different subjects and share one alert. If none has an alert, the rule is
    written by hand.
    """

    code: str
    place: int
    source: Source[Fact]
    measure: Callable[[Fact], Iterable[Measurement]]
    limit: float | Callable[[str], float] = 0
    holds: Literal["above", "below"] = "above"
    paused_by: Pause.Part | None = None
    sentence: str
    do: str
    alert: Alert | None
    page: str = ""

    def find(self, fact: Fact) -> Iterator[ActiveCondition]:
        """Yield the condition for each subject for which it holds."""
        for number, subject, words in self.measure(fact):
            limit = self.limit(subject) if callable(self.limit) else self.limit
            if number > limit if self.holds == "above" else number < limit:
                sentence = self.sentence.format(number=Counted(number), subject=subject, **words)
                do = words.get("do", self.do)
                yield ActiveCondition(self, subject, number, limit, f"{sentence}: {do}")


@dataclasses.dataclass(frozen=True, eq=False)
class FactGauge(Generic[Fact]):
    """A gauge whose values are read from a fact."""

    gauge: Gauge
    source: Source[Fact]
    values: Callable[[Fact], Values]


_conditions: list[Condition[Any]] = []
_gauges: list[FactGauge[Any]] = []
CONDITION = gauge(
    "orderpost_condition", "1 while the condition of the alert `code` holds, else 0", ["code", "subject"]
)


def register(*conditions: Condition[Any]) -> None:
    _conditions.extend(conditions)
    # The places order the apps' conditions, without a list of all codes here.
    _conditions.sort(key=attrgetter("place"))


def show(gauge: Gauge, source: Source[Fact], values: Callable[[Fact], Values]) -> None:
    """Expose the values of a fact as a gauge, at each scrape at which the source is known."""
    _gauges.append(FactGauge(gauge, source, values))


def declared() -> Sequence[Condition[Any]]:
    """Return the conditions of all apps, the most severe first."""
    return tuple(_conditions)


def decide(facts: Facts) -> list[ActiveCondition]:
    """Return the conditions that hold, the most severe first.

    Skip those whose source is not known, and those that a known pause explains.
    """
    paused = {pause["part"] for pause in facts[PAUSES]} if PAUSES in facts else set()
    relevant = (
        condition
        for condition in _conditions
        if condition.source in facts and condition.paused_by not in paused
    )
    return [active for condition in relevant for active in condition.find(facts[condition.source])]


def families(facts: Facts) -> Iterator[GaugeMetricFamily]:
    """Yield the gauges of these facts, and each of their conditions with 0 or 1.

    Each source has its own scrape. The conditions of PostgreSQL's facts survive an outage of Valkey.
    """
    for exposed in _gauges:
        if exposed.source in facts:
            yield exposed.gauge.family(exposed.values(facts[exposed.source]))
    active = {(condition.code, condition.subject) for condition in decide(facts)}
    values: dict[tuple[str, str], float] = {}
    for condition in _conditions:
        if condition.alert and condition.source in facts:
            subjects = [
                measurement.subject for measurement in condition.measure(facts[condition.source])
            ] or [""]
            values |= {
                (condition.code, subject): float((condition.code, subject) in active) for subject in subjects
            }
    yield CONDITION.family(values)


def read_facts(*, now: dt.datetime) -> Facts:
    """Read the facts that PostgreSQL has, in one statement for each server."""
    servers: dict[str, list[Query[Any]]] = {}
    for query in dict.fromkeys(
        condition.source for condition in _conditions if isinstance(condition.source, Query)
    ):
        using = DEFAULT_DB_ALIAS if query.is_about_server else replica.alias()
        servers.setdefault(using, []).append(query)
    values: dict[Source[Any], Any] = {}
    for using, queries in servers.items():
        columns = (f"(SELECT json_agg(found) FROM ({query.select(now)}) AS found)" for query in queries)  # noqa: S608
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT " + ", ".join(columns))
            answers = zip(queries, cursor.fetchone(), strict=True)
        values |= {query: query.read(rows or [], now) for query, rows in answers}
    return Facts(values)


def time_in_words(at: dt.datetime, *, now: dt.datetime) -> str:
    """Write a time for a sentence, which must not change from read to read as an age would.

    >>> now = dt.datetime(2026, 11, 29, 1, 30, tzinfo=dt.UTC)
    >>> time_in_words(dt.datetime(2026, 11, 28, 22, 41, tzinfo=dt.UTC), now=now)
    '22:41 UTC'
    >>> time_in_words(dt.datetime(2026, 11, 27, 22, 41, tzinfo=dt.UTC), now=now)
    '27 November 22:41 UTC'
    """
    here = timezone.localtime(at)
    day = f"{here.day} {here:%B} " if now - at > dt.timedelta(hours=20) else ""
    return f"{day}{here:%H:%M %Z}"


def positive(row: Mapping[str, Any]) -> Row:
    """Return numbers with 0 for NULL, and for an age that is negative."""
    return {name: max(0, value or 0) for name, value in row.items()}


def _ages(beats: Sequence[Row], _: dt.datetime) -> dict[str, float]:
    return {beat["name"]: max(0.0, beat["age"]) for beat in beats}


#: Of each pause: part, seconds, by, reason.
PAUSES: Query[Sequence[Row]] = Query(
    name="pauses",
    select=lambda _: (
        """
        SELECT part, round(extract(epoch FROM statement_timestamp() - paused_at), 1)::float8 AS seconds,
            username AS by, reason
        FROM pauses ORDER BY part
    """
    ),
    read=lambda rows, _: rows,
)
#: Seconds since each regular job last ran: in the process that ran it last, if several do.
HEARTBEATS: Query[Mapping[str, float]] = Query(
    name="heartbeats",
    select=lambda _: (
        f"""
        SELECT split_part(name, '@', 1) AS name,
            extract(epoch FROM statement_timestamp() - max(beat_at))::float8 AS age
        FROM heartbeats WHERE kind IS NULL AND name <> '{Heartbeat.DELIVERY_RESUMED}' GROUP BY 1 ORDER BY 1
    """  # noqa: S608 - ours
    ),
    read=_ages,
)
#: Without a beat for so long, a process is named.
QUIET_SECONDS = 20.0
#: A job that is late is not named for so long after the start of the processes that run it.
START_SECONDS = 120.0


class Jobs(NamedTuple):
    """The regular jobs and the processes that run them, in seconds."""

    ages: Mapping[str, float]  # since the last run of each job
    up: Mapping[str, float]  # since the longest-running process of each kind began, or woke from a long gap

    def late_seconds(
        self, job: str, *, kinds: Sequence[str], never: float = 0.0, start_seconds: float = START_SECONDS
    ) -> float:
        """Return the seconds since a job last ran, 0.0 in a start, or `never` if it never ran.

        `kinds` are those of the processes that run it. If there is none, the others tell that all of them
        have just started.
        """
        running = [self.up[kind] for kind in kinds if kind in self.up] or [*self.up.values()]
        if running and max(running) < start_seconds:
            return 0.0
        return self.ages.get(job, never)


def _jobs(rows: Sequence[Row], _: dt.datetime) -> Jobs:
    ages = {row["name"]: max(0.0, row["age"]) for row in rows if not row["is_process"]}
    up = {row["name"]: row["up"] for row in rows if row["is_process"] and row["up"] is not None}
    return Jobs(ages, up)


JOBS: Query[Jobs] = Query(
    name="regular jobs",
    select=lambda _: (
        f"""
        SELECT coalesce(kind, split_part(name, '@', 1)) AS name, kind IS NOT NULL AS is_process,
            extract(epoch FROM statement_timestamp() - max(beat_at))::float8 AS age,
            extract(epoch FROM statement_timestamp() - min(since) FILTER (
                WHERE beat_at > statement_timestamp() - interval '{QUIET_SECONDS} s'))::float8 AS up
        FROM heartbeats WHERE name <> '{Heartbeat.DELIVERY_RESUMED}' GROUP BY 1, 2
    """  # noqa: S608 - ours
    ),
    read=_jobs,
)
#: Of each process: kind, host, number, release, the seconds since its last beat and since it began, and by
#: how many seconds its clock is ahead of the database's. A process that has not beaten for a day is
#: forgotten: its machine is gone for good.
PROCESSES: Query[Sequence[Row]] = Query(
    name="processes",
    select=lambda _: (
        """
        SELECT kind, host, process, release,
            greatest(0, round(extract(epoch FROM statement_timestamp() - beat_at), 1))::float8 AS seconds,
            extract(epoch FROM statement_timestamp() - since)::float8 AS up_seconds, clock_ahead
        FROM heartbeats WHERE kind IS NOT NULL AND beat_at > statement_timestamp() - interval '1 day'
        ORDER BY kind, host, process
    """
    ),
    read=lambda rows, _: rows,
)
