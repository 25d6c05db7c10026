"""Two years of detached months and five years of cold ones: what grows with their number.

`python -m benchmarks --only tiers` builds months of e-mails as `benchmarks.months` describes, measures each
step of `STEPS`, and prints a table with a column for each step. It needs 25 GB of disk and an hour.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks.figures import table
from benchmarks.rig import Rig
from local.machine import guarded
from local.servers import EmbeddedPostgres

#: Detached tables and cold months of each column.
STEPS = ((1, 0), (12, 0), (24, 0), (24, 10), (24, 60))
#: Two attached months have e-mails: last month and this one.
HOT = 2
#: The settings of PostgreSQL while it loads. It does not log new tables.
LOADING = (
    "wal_level=minimal",
    "max_wal_senders=0",
    "fsync=off",
    "full_page_writes=off",
    "autovacuum=off",
    "max_wal_size=8GB",
    "maintenance_work_mem=512MB",
)
MEASURING = ("shared_buffers=1GB", "max_wal_size=4GB")
ROWS, COLD_ROWS = 1_000_000, 100_000


class Postgres(EmbeddedPostgres):
    """PostgreSQL with more settings."""

    more: tuple[str, ...] = LOADING

    def argv(self) -> list[str]:
        return [*super().argv(), *(part for setting in self.more for part in ("-c", setting))]


class Watch:
    """A report that keeps the seconds of each step of an export or an erasure, by its place."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._at = time.perf_counter()

    def __call__(self, step: str, **facts: Any) -> None:
        now = time.perf_counter()
        if "cold_file" in facts or step == "cold file rewritten":
            place = "cold"
        elif str(facts.get("partition") or facts.get("table")).startswith("email_notifications_p"):
            place = "warm"
        else:
            place = "hot"
        self.seconds[place] = self.seconds.get(place, 0.0) + now - self._at
        self._at = now


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def median(work: Callable[[], object], times: int = 5) -> float:
    """Return the median of the seconds that a call takes, without a first call."""
    work()
    return statistics.median(seconds_of(work) for _ in range(times))


class Bench:
    """A database that grows by months, and the figures of its steps."""

    def __init__(self, rig: Rig, *, rows: int = ROWS, cold_rows: int = COLD_ROWS) -> None:
        from benchmarks import months  # after Django's setup

        self.rig, self.months, self.rows, self.cold_rows = rig, months, rows, cold_rows
        self.detached = self.cold = self.person = 0
        self.archived: list[float] = []

    def restart(self, more: tuple[str, ...]) -> None:
        """Restart PostgreSQL with other settings."""
        from django.db import connections

        connections.close_all()
        self.rig.postgres.stop(timeout_seconds=600)
        self.rig.postgres.more = more  # type: ignore[attr-defined]
        self.rig.postgres.start(log=self.rig.folder / "postgres.log", timeout_seconds=600)

    def build(self, *, detached: int, cold: int) -> None:
        """Load all months, and detach or archive them as the product does."""
        self.restart(LOADING)
        months, url = self.months, self.rig.postgres.url
        began = time.perf_counter()
        months.fill_rest(url=url, rows=self.rows)
        backs = [HOT + number for number in range(detached)]
        months.load(url=url, backs=[*range(HOT), *backs], rows=self.rows)
        months.detach_months(backs)
        say(f"{HOT + detached} tables of {self.rows:,} e-mails in {time.perf_counter() - began:.0f} s")
        self.restart(MEASURING)
        backs = [HOT + detached + number for number in range(cold)]
        self.archived = [*months.write_cold(url=url, backs=backs, rows=self.cold_rows)]
        say(f"{cold} cold months: {time.perf_counter() - began:.0f} s in all")
        self.detached, self.cold = detached, cold

    def show(self, *, detached: int, cold: int) -> None:
        """Hide the oldest detached tables in another schema, and the oldest cold files as if deleted."""
        from django.db import connections
        from django.db.models.functions import Now

        from retention.models import DetachedPartition

        records = DetachedPartition.objects.order_by("-since")
        with connections["owner"].cursor() as cursor:
            cursor.execute("CREATE SCHEMA IF NOT EXISTS hidden")
            for number, record in enumerate(records.filter(dropped_at=None)):
                here, there = ("hidden", "public") if number < detached else ("public", "hidden")
                cursor.execute(f"ALTER TABLE IF EXISTS {here}.{record.name} SET SCHEMA {there}")
        names = list(records.exclude(dropped_at=None).values_list("name", flat=True))
        DetachedPartition.objects.filter(name__in=names[:cold]).update(deleted_at=None)
        DetachedPartition.objects.filter(name__in=names[cold:]).update(deleted_at=Now())
        self.detached, self.cold = detached, cold

    def next_person(self) -> str:
        self.person += 1
        return self.months.address(self.person - 1)

    def measure(self) -> dict[str, str]:
        """Measure what an operator and a customer wait for, and return the figures by name."""
        figures: dict[str, str] = {}

        def note(name: str, seconds: float, more: str = "") -> None:
            figures[name] = f"{in_words(seconds)}{more}"
            say(f"  {name}: {figures[name]}")

        note("claim: planning", self.planning_of_claim())
        note("search by address, admin", self.search())
        for name, back in (("this month", 0), ("oldest warm month", HOT + self.detached - 1)):
            seconds, planning, locks = self.timeline(back)
            note(f"timeline, order of {name}", seconds, f" (planning {in_words(planning)}, {locks} locks)")
        for name, seconds in self.export().items():
            note(f"export: {name}", seconds)
        for name, seconds in ({} if self.cold else self.erase()).items():
            note(f"erasure: {name}", seconds)
        note("`partitions list`", median(self.list_partitions))
        note("rollover with nothing to do", median(self.roll))
        if self.cold:
            if self.archived:
                note("cold month: write, read back, compare", statistics.median(self.archived))
            note("cold month: restore", self.restore())
            for name, seconds in self.erase_everywhere().items():
                note(f"erasure: {name}", seconds)
        note("`pg_dump --schema-only`", median(lambda: self.dump("--schema-only", "--schema=public"), 3))
        return figures

    def planning_of_claim(self) -> float:
        from django.db import connections, transaction

        from outbox.claim import claim

        sent: list[tuple[str, Any]] = []

        def remember(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            sent.append((sql, params))
            return execute(sql, params, many, context)

        seconds = []
        with transaction.atomic(), connections["default"].cursor() as cursor:
            with connections["default"].execute_wrapper(remember):
                claim(limit=100, fresh=25)
            ((sql, params),) = sent
            for _ in range(21):
                cursor.execute("EXPLAIN (SUMMARY, FORMAT JSON) " + sql, params)
                seconds.append(_plan(cursor)["Planning Time"] / 1000)
            transaction.set_rollback(True)  # no process is working on what was claimed
        return statistics.median(seconds[1:])

    def search(self) -> float:
        from django.contrib.auth.models import User
        from django.test import Client

        user, _ = User.objects.get_or_create(username="bench", is_staff=True, is_superuser=True)
        client = Client()
        client.force_login(user)
        numbers = iter(range(30))

        def find() -> None:
            answer = client.get("/admin/search/", {"q": f"user{1000 + next(numbers)}@example.com"})
            assert answer.status_code == 200 and b"order" in answer.content, answer.status_code

        return median(find)

    def timeline(self, back: int) -> tuple[float, float, int]:
        """Return the seconds of a timeline, those of planning its largest statement, and its locks."""
        from django.db import connection, transaction
        from django.test.utils import CaptureQueriesContext

        from orders.models import Order
        from orders.timeline import read_timeline

        people = iter(range(self.months.PERSONS - 1, 0, -1))
        month = self.months.month(back=back)

        def order() -> Order:
            return Order.objects.get(id=self.months.order_id(month, next(people), self.rows))

        orders = iter([order() for _ in range(8)])

        def read() -> None:
            entries = read_timeline(order=next(orders))
            assert sum(entry.kind == "email" and entry.what == "created" for entry in entries) == 3

        seconds = median(read)
        with (
            CaptureQueriesContext(connection) as captured,
            transaction.atomic(),
            connection.cursor() as cursor,
        ):
            read_timeline(order=next(orders))
            cursor.execute("SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()")
            locks = cursor.fetchone()[0]
        (sql,) = [
            statement["sql"]
            for statement in captured
            if "to_jsonb" in statement["sql"] and "body_text" in statement["sql"]
        ]
        planning = []
        with connection.cursor() as cursor:
            for _ in range(6):
                cursor.execute("EXPLAIN (SUMMARY, FORMAT JSON) " + sql.replace("%", "%%"), [])
                planning.append(_plan(cursor)["Planning Time"] / 1000)
        return seconds, statistics.median(planning[1:]), locks

    def export(self) -> dict[str, float]:
        from orders.privacy.export import export_person

        times = []
        for person in range(self.months.PERSONS - (1 if self.cold else 6), self.months.PERSONS):
            watch = Watch()
            document = export_person(email=self.months.address(person), report=watch)
            mails = len(document["email_notifications"])
            assert mails == 3 * (HOT + self.detached + self.cold), mails
            times.append(watch.seconds)
        return medians(times[1:] or times)

    def erase(self) -> dict[str, float]:
        """Erase persons by jobs, as a worker does."""
        from orders.privacy import jobs
        from runtime.audit import Actor
        from runtime.jobs.run import run_until_ended

        times = []
        for _ in range(6):
            job, watch = jobs.start_erasure(email=self.next_person(), force=False, by=Actor("x")), Watch()
            run_until_ended(job=job, report=watch)
            job.refresh_from_db()
            expected = 3 * (HOT + self.detached)
            assert job.state == job.State.DONE and job.done_count >= expected, (job.state, job.error)
            times.append(watch.seconds)
        return medians(times[1:])

    def list_partitions(self) -> None:
        from retention.partitions.listing import list_partitions

        list_partitions()

    def roll(self) -> None:
        from retention.rollover import rollover

        steps: list[str] = []
        result = rollover(report=lambda step, **_: steps.append(step))
        assert not (result.held or result.failed or result.waiting), result
        assert not set(steps) - {"purged", "swept"}, steps

    def restore(self) -> float:
        from retention.cold_files import restore
        from retention.models import DetachedPartition

        records = iter(DetachedPartition.objects.exclude(dropped_at=None).order_by("since")[:4])
        times = []
        for record in records:
            began = time.perf_counter()
            name = restore.restore(record=record)
            times.append(time.perf_counter() - began)
            restore.drop_restored(name=name)
        return statistics.median(times[1:])

    def dump(self, *options: str) -> None:
        postgres = self.rig.postgres
        command = [str(postgres.bin / "pg_dump"), *options, "--dbname", postgres.url]
        subprocess.run(guarded(command), stdout=subprocess.DEVNULL, check=True, env=postgres.environment())

    def once(self) -> dict[str, str]:
        """Measure what is done once: a vacuum, a rollover and a whole dump."""
        return self.vacuum_one() | self.roll_over() | self.dump_whole()

    def dump_whole(self) -> dict[str, str]:
        seconds = seconds_of(lambda: self.dump("--format=custom", "--compress=gzip:1"))
        return {"whole `pg_dump`, gzip:1": in_words(seconds)}

    def erase_everywhere(self) -> dict[str, float]:
        """Erase a person from hot, warm and cold months. Say what the job shows, and check every byte."""
        from orders.models import Order
        from orders.privacy import jobs
        from orders.privacy.erasure import rewrite_cold_files
        from retention.rows_of_person import describe_rest
        from runtime.audit import Actor
        from runtime.jobs.run import run_until_ended

        person = self.next_person()
        orders = Order.objects.filter(email=person).count()
        done: list[int] = []
        job = jobs.start_erasure(email=person, force=False, by=Actor("x"))

        def report(step: str, **_: Any) -> None:
            job.refresh_from_db(fields=["done_count"])
            done.append(job.done_count)

        seconds = seconds_of(lambda: run_until_ended(job=job, report=report))
        job.refresh_from_db()
        assert job.state == job.State.DONE and done == sorted(done) and len({*done}) > self.detached
        say(f"progress of the job: {done}")
        rest = describe_rest(person=job.filter["person"])
        say(f"the job's page says: {rest}")
        assert rest.startswith(f"{self.cold} cold files")
        assert len(self.months.cold_files_with(person)) == self.cold
        now = seconds_of(lambda: rewrite_cold_files(report=Watch()))
        assert not describe_rest(person=job.filter["person"])
        traces = [*self.months.tables_with(person), *self.months.cold_files_with(person)]
        assert not traces, traces
        say(f"no trace in {self.detached} tables and {self.cold} cold files of a person with {orders} orders")
        return {"hot and warm, by the job": seconds, "cold files, by `--now`": now}

    def roll_over(self) -> dict[str, str]:
        """Detach one more month, write the oldest one to a cold file, compare it and drop it."""
        import datetime as dt

        from django.conf import settings
        from django.db.models import F

        from retention.models import DetachedPartition
        from retention.rollover import rollover

        figures: dict[str, str] = {}
        settings.HOT_DAYS["email_notifications"], settings.WARM_DAYS["email_notifications"] = 20, 730
        for _ in range(2):
            at = time.perf_counter()

            def report(step: str, **facts: Any) -> None:
                nonlocal at
                now = time.perf_counter()
                if step != "bytes":
                    say(f"  {step} {facts}: {now - at:.2f} s")
                    if "partition" in facts:
                        figures[f"rollover: {step}"] = in_words(now - at)
                    at = now

            result = rollover(report=report)
            assert not (result.held or result.failed or result.waiting), result
            week = dt.timedelta(days=8)
            DetachedPartition.objects.filter(dropped_at=None).update(archived_at=F("archived_at") - week)
        return figures

    def vacuum_one(self) -> dict[str, str]:
        """Say how much of the detached tables is frozen, and vacuum one of them."""
        from django.db import connections

        figures = {}
        with connections["owner"].cursor() as cursor:
            names = [self.months.month(back=HOT + number).name for number in range(1, 23)]
            cursor.execute(
                "SELECT sum(relpages), sum(relallvisible), sum(relallfrozen),"
                " sum(autovacuum_count), sum(vacuum_count) FROM pg_class"
                " JOIN pg_stat_user_tables USING (relname) WHERE relname = ANY(%s)",
                [names],
            )
            figures["pages, visible, frozen, autovacuums, vacuums"] = str(cursor.fetchone())
            for how in ("", "(FREEZE)", "", "(FREEZE)"):
                figures[f"VACUUM {how} {len(figures)}"] = in_words(
                    seconds_of(lambda how=how: cursor.execute(f"VACUUM {how} {names[0]}"))
                )
        say(str(figures))
        return figures


def medians(times: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for by_name in times for name in by_name)
    return {name: statistics.median(by_name.get(name, 0.0) for by_name in times) for name in names}


def _plan(cursor: Any) -> dict[str, Any]:
    (answer,) = cursor.fetchone()
    return (json.loads(answer) if isinstance(answer, str) else answer)[0]


def in_words(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def prepare() -> Rig:
    """Return a rig whose settings keep 24 months warm and 60 cold, and set up Django with them."""
    rig = Rig(
        ALLOWED_HOSTS="*", EMAIL_WARM_DAYS="760", ARCHIVE_YEARS="8", LOG_LEVEL="ERROR", EMAIL_RATE_LIMIT="0"
    )
    rig.settings["ARCHIVE_URL"] = (rig.folder / "archive").as_uri()
    rig.postgres = Postgres(data=rig.folder / "postgres", port=rig.postgres.port)
    os.environ.update(rig.environment(DJANGO_SETTINGS_MODULE="config.settings"))
    import django

    django.setup()
    return rig


def compare(*, quick: bool) -> str:
    """Build and measure each step, and return the table."""
    with prepare() as rig:
        bench = Bench(rig, **({"rows": 20_000, "cold_rows": 2000} if quick else {}))
        figures = []
        bench.build(detached=STEPS[-1][0], cold=STEPS[-1][1])
        for detached, cold in STEPS:
            bench.show(detached=detached, cold=cold)
            figures.append(bench.measure())
        rest = bench.once()
    names = dict.fromkeys(name for by_name in figures for name in by_name)
    rows = [["", *(f"{detached} warm, {cold} cold" for detached, cold in STEPS)]]
    rows += [[name, *(by_name.get(name, "") for by_name in figures)] for name in names]
    return f"{table(rows)}\n\n{table([['once', 'took'], *map(list, rest.items())])}"


if __name__ == "__main__":
    print(compare(quick="--quick" in sys.argv))
