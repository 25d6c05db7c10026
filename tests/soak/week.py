"""The week: each day has every happening of `HAPPENINGS` once, in an order that the seed decides.

All happenings run in the main thread, because Linux kills a guarded process when its starting thread exits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import redis

from local.machine import HOST, PROJECT, free_port
from local.sandbox import WebhookSettings
from local.sandbox.faults import Kind
from tests.chaos.auditor import Findings, audit
from tests.chaos.customers import Customers
from tests.chaos.listener import Listener
from tests.chaos.run import settle, wait_for_listener
from tests.kit.paired import PairedShop
from tests.kit.shop import KEYS, Shop
from tests.soak import calendar
from tests.soak.calendar import Aged
from tests.soak.samples import Sample, Sampler, Trend, trends

SETTINGS = {
    "POLL_INTERVAL": "2",
    "AMBIGUOUS_HOLD_SECONDS": "15",
    "EMAIL_RATE_LIMIT": "100",
    "BREAKER_OPEN_SECONDS": "1",
    "RETRY_BACKOFF_BASE": "1",
    "LOG_LEVEL": "INFO",
    "DATABASE_TIMEOUT": "4",
    "LEASE_SECONDS": "20",
    "EVENT_STREAM_LENGTH": "500",
    "EMAIL_WARM_DAYS": "1",
    "PARTITION_GRACE_DAYS": "0",
}
#: A release restarts these every day. The second process of each, and the others, live the whole week.
DEPLOYED = ("web", "worker", "relay")
LASTING = ("web:2", "worker:2", "relay:2", "beat", "standby", "consumer", "partitions")
#: The length of a day for which the happenings' durations are meant.
DAY_SECONDS = 480.0
#: The share of a day before its end, when finished rows age and are archived.
EVENING = 0.12


class SoakShop(PairedShop):
    """A shop with a standby of PostgreSQL. Its sessions show their process's name in PostgreSQL."""

    def __init__(self, **settings: str) -> None:
        super().__init__(durable_valkey=True)
        self.settings = settings | {"ARCHIVE_URL": (self.folder / "archive").as_uri()}
        self.ports = {"web": self.port, "web:2": free_port()}
        self.metrics = {name: free_port() for name in self.ports}

    def launch(self, name: str, *, wait: bool = True) -> None:
        settings = {"DATABASE_URL": f"{self.database_url}&application_name={name}"}
        port = self.ports.get(name)
        if port is not None:
            folder = self.folder / f"metrics-{name}"
            folder.mkdir(exist_ok=True)
            settings |= {"PROMETHEUS_MULTIPROC_DIR": str(folder)}
            settings |= {"METRICS_HOST": HOST, "METRICS_PORT": str(self.metrics[name])}
        self.start(name, wait=wait, port=port, checkout=PROJECT, **settings)


@dataclasses.dataclass
class Week:
    """The shop of the happenings, and their records for the report."""

    shop: SoakShop
    chance: random.Random
    customers: Customers
    began: float  # epoch seconds
    scale: float  # of durations
    losses: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    wrong: list[str] = dataclasses.field(default_factory=list)
    aged: list[Aged] = dataclasses.field(default_factory=list)
    erased: list[str] = dataclasses.field(default_factory=list)
    dead_lettered: int = 0
    morning: float = 0.0  # rows of later orders are not aged

    def wait(self, seconds: float) -> None:
        time.sleep(seconds * self.scale)

    def restart(self, name: str, *, grace: float = 15.0) -> None:
        if not self.shop.terminate(name, seconds=grace):
            self.wrong.append(f"{name} did not end within {grace:g} s of SIGTERM")
        self.shop.launch(name)

    def supervise(self) -> None:
        """Start processes that have exited, as a supervisor does. Each exit is a finding."""
        for name, process in list(self.shop.processes.items()):
            if (code := process.poll()) is not None:
                self.wrong.append(f"{name} ended by itself: {code}")
                self.shop.keep_logs()
                self.shop.launch(name)

    def manage(self, *arguments: str, tries: int = 3) -> str:
        """Run a command, and repeat it after exit code 75, which is not an error."""
        for _ in range(tries):
            try:
                return self.shop.manage(*arguments)
            except subprocess.CalledProcessError as error:
                if error.returncode != 75:
                    self.wrong.append(f"{arguments}: {error.returncode} {error.stderr[-1500:]}")
                    return ""
        self.wrong.append(f"{arguments}: had to wait {tries} times")
        return ""


def deploy(week: Week) -> str:
    before = sum(week.customers.errors.values())
    for name in DEPLOYED:
        week.restart(name)
    refused = sum(week.customers.errors.values()) - before
    return f"{', '.join(DEPLOYED)}, one after the other; {refused} answers of 5xx"


def provider_refuses(week: Week) -> str:
    week.shop.sandbox.fail(kind="refuse", seconds=20.0 * week.scale)
    week.wait(20)
    return _heal(week, "no connection to it")


def provider_fails(week: Week) -> str:
    return _provider(week, "status", seconds=20, status=503)


def provider_is_slow(week: Week) -> str:
    return _provider(week, "slow", seconds=25, slow=1.2)


def _provider(week: Week, kind: Kind, *, seconds: float, status: int = 503, slow: float | None = None) -> str:
    week.shop.sandbox.fail(kind=kind, status=status, seconds=slow)
    week.wait(seconds)
    return _heal(week, f"{kind} {slow or status}")


def _heal(week: Week, what: str) -> str:
    week.shop.sandbox.heal()
    return f"{what}; {_drained(week)}"


def _drained(week: Week) -> str:
    """Wait until no e-mail is overdue. Return how many were, and how long it took."""
    overdue = (
        "SELECT count(*) FROM email_notifications"
        " WHERE status <> 'sent' AND created_at < now() - interval '5 s'"
    )
    began, ((waiting,),) = time.monotonic(), week.shop.query(overdue)
    while week.shop.query(overdue) != [(0,)]:
        if time.monotonic() - began > 120:
            week.wrong.append("a backlog was not drained in 120 s")
            break
        time.sleep(0.5)
    return f"a backlog of {waiting} drained in {time.monotonic() - began:.0f} s"


def valkey_is_away(week: Week) -> str:
    began = time.time()
    week.shop.restart_valkey_hard(pause=15.0 * week.scale)
    week.losses.append((began - 2.5, time.time() + 0.5))
    return f"SIGKILL, {15 * week.scale:.0f} s without"


def worker_is_killed(week: Week) -> str:
    week.shop.kill("worker")
    week.wait(5)
    week.shop.launch("worker")
    return "worker"


def worker_freezes(week: Week) -> str:
    week.shop.signal("worker:2", signal.SIGSTOP)
    week.wait(30)
    week.shop.signal("worker:2", signal.SIGCONT)
    return f"worker:2, {30 * week.scale:.0f} s (LEASE_SECONDS={SETTINGS['LEASE_SECONDS']})"


def postgres_fails_over(week: Week) -> str:
    began, before = time.monotonic(), len(week.customers.acknowledged)
    week.shop.pair.fail_over()
    week.shop.until(lambda: len(week.customers.acknowledged) > before + 6, "changes are acknowledged")
    again = time.monotonic() - began
    week.shop.pair.join()
    took = time.monotonic() - began
    return f"changes again {again:.1f} s after SIGKILL, the other one back as standby after {took:.0f} s"


def pause_and_resume(week: Week) -> str:
    began = time.monotonic()
    week.manage("pause", "--all", "--reason", "soak")
    paused = time.monotonic()
    week.wait(40)
    ((waiting,),) = week.shop.query("SELECT count(*) FROM email_notifications WHERE status = 'pending'")
    if not waiting:
        week.wrong.append("a pause kept no mail back")
    ended = time.monotonic()
    week.manage("resume", "--all")
    took = f"commands of {paused - began:.1f} and {time.monotonic() - ended:.1f} s"
    return f"{40 * week.scale:.0f} s, {took}; {waiting} mails waited; {_drained(week)}"


def dead_letters(week: Week) -> str:
    week.shop.sandbox.fail(kind="status", status=400, to="^[0-3]")
    week.wait(15)
    week.shop.sandbox.heal()
    dead = week.shop.query("SELECT count(*) FROM email_notifications WHERE status = 'dead_lettered'")[0][0]
    week.dead_lettered += dead
    resend = (
        "from notifications.models import EmailNotification as E; from notifications.services import resend;"
        "resend(ids=E.objects.filter(status='dead_lettered').values_list('id', flat=True))"
    )
    week.manage("shell", "-c", resend)
    if not dead:
        week.wrong.append("no mail became a dead letter")
    return f"{dead} resent at once; {_drained(week)}"


def erasure(week: Week) -> str:
    """Erase a customer of today whose order is finished."""
    rows = week.shop.query(
        "SELECT email FROM orders WHERE status IN ('completed', 'refunded') AND email LIKE '%@example.com'"
        f" AND created_at > to_timestamp({week.morning}) AND created_at < now() - interval '30 s'"
        " AND NOT EXISTS (SELECT FROM email_notifications"
        " WHERE order_id = orders.id AND status <> 'sent') ORDER BY created_at LIMIT 300"
    )
    if not rows:
        return "nobody has ended yet"
    (email,) = week.chance.choice(rows)
    week.erased.append(email)
    done = week.manage("privacy", "erase", "--email", email, "--now")
    return f"one customer, {json.loads(done)['changed'] if done else 'failed'}"


Happening = Callable[[Week], str]
HAPPENINGS: tuple[Happening, ...] = (
    provider_refuses,
    provider_is_slow,
    provider_fails,
    valkey_is_away,
    worker_is_killed,
    worker_freezes,
    postgres_fails_over,
    pause_and_resume,
    dead_letters,
    erasure,
    deploy,
)


def evening(week: Week, day: int) -> str:
    """Age the day's finished rows, and archive the oldest partitions."""
    code = f"from tests.soak.calendar import pass_day; pass_day(day={day}, began={week.began!r})"
    answer = week.manage("shell", "-c", code).strip().rpartition("\n")[2]
    aged = [Aged(*one) for one in json.loads(answer)] if answer else []
    week.aged += aged
    week.morning = time.time()
    week.manage("partitions", "rollover")
    return ", ".join(f"{one.rows} rows to {one.partition}" for one in aged) + "; archived and dropped"


@dataclasses.dataclass
class Report:
    """The events of a week, its measurements, and the auditor's findings."""

    seed: int
    days: int
    day_seconds: float
    rate: float
    lines: list[tuple[float, int, str, str]]  # seconds, day, happening, its result
    samples: list[Sample]
    trends: list[Trend]
    findings: Findings
    changes: int
    mails: int
    events: int
    retries: int
    dead_lettered: int
    erased: int
    archived_rows: int
    answers: list[float]

    @property
    def growing(self) -> list[Trend]:
        return [trend for trend in self.trends if not trend.flat]

    @property
    def passed(self) -> bool:
        return not any(self.findings.counts().values()) and not self.growing


def run(*, seed: int, days: int, day_seconds: float, rate: float, say: Callable[[str], None]) -> Report:
    """Let the days pass, settle, and audit."""
    shop = SoakShop(**SETTINGS)
    with shop, _logs_kept(shop):
        shop.sandbox.webhooks.settings = WebhookSettings(url=shop.webhooks, keys=KEYS)
        with psycopg.connect(shop.postgres.url, autocommit=True) as connection:
            connection.execute(calendar.PREPARE.encode())
            (now,) = connection.execute("SELECT extract(epoch FROM now())::float").fetchone() or (0.0,)
        for name in (*DEPLOYED, *LASTING):
            shop.launch(name)
        customers = Customers(
            urls=[f"http://127.0.0.1:{port}" for port in shop.ports.values()],
            token=str(shop.session.headers["Authorization"]).partition(" ")[2],
            redis_url=shop.valkey.url,
            rate=rate,
            seed=seed,
        )
        week = Week(shop, random.Random(seed), customers, float(now), min(1.0, day_seconds / DAY_SECONDS))
        listener = Listener(url=shop.valkey.url)
        began = time.monotonic()
        sampler = Sampler(
            shop,
            began=began,
            archives=shop.folder / "archive",
            scraped=shop.metrics.values(),
            interval=30.0 * min(1.0, day_seconds / 240),
        )
        listener.start()
        customers.start()
        sampler.start()
        lines: list[tuple[float, int, str, str]] = []

        def do(day: int, what: Callable[[], str], name: str) -> None:
            at = time.monotonic() - began
            lines.append((at, day, name, what()))
            took = time.monotonic() - began - at
            week.supervise()
            say(f"{at:7.1f} s  day {day}  {name} ({took:.0f} s): {lines[-1][3]}")

        for day in range(1, days + 1):
            order = week.chance.sample(HAPPENINGS, len(HAPPENINGS))
            morning, night = (day - 1) * day_seconds, day * day_seconds
            for number, happening in enumerate(order):
                due = began + morning + (number + 0.3) * (1 - EVENING) * day_seconds / len(order)
                time.sleep(max(0.0, due - time.monotonic()))
                do(day, lambda now=happening: now(week), happening.__name__)  # type: ignore[misc]
            time.sleep(max(0.0, began + night - EVENING * day_seconds - time.monotonic()))
            do(day, lambda now=day: evening(week, now), "evening")  # type: ignore[misc]
            time.sleep(max(0.0, began + night - time.monotonic()))
            say(f"day {day} ends: {len(customers.acknowledged)} changes acknowledged")
        sampler.stop()
        customers.stop(seconds=60)
        settle(shop)
        wait_for_archives(week)
        _wait_for_listener(listener, week)
        listener.stop()
        findings = check(week, listener)
        findings.wrong += customers.wrong + week.wrong
        report = Report(
            seed=seed,
            days=days,
            day_seconds=day_seconds,
            rate=rate,
            lines=lines,
            samples=sampler.samples,
            trends=trends(sampler.samples, day_seconds=day_seconds) if days > 2 else [],
            findings=findings,
            changes=len(customers.acknowledged),
            mails=len(shop.accepted()),
            events=len({one.event for one in listener.seen}),
            retries=customers.retries,
            dead_lettered=week.dead_lettered,
            erased=len(week.erased),
            archived_rows=sum(one.rows for one in week.aged),
            answers=customers.slow_answers,
        )
        if not report.passed:
            say(f"the logs of all processes are in {shop.keep_logs()}")
        return report


@contextlib.contextmanager
def _logs_kept(shop: Shop) -> Iterator[None]:
    try:
        yield
    except BaseException:
        shop.keep_logs()
        raise


def wait_for_archives(week: Week) -> None:
    for table, rows in calendar.leftovers(week.shop.postgres.url, began=week.began):
        if rows:
            week.wrong.append(f"{rows} aged rows of {table} were not archived")
    for one in week.aged:
        if one.rows and one.table == "email_notifications":
            week.manage("partitions", "restore", one.partition)


def _wait_for_listener(listener: Listener, week: Week) -> None:
    wait_for_listener(listener, week.shop)
    time.sleep(2)


def check(week: Week, listener: Listener) -> Findings:
    """Audit live tables and archives together. Check that nothing of the erased customers is left."""
    url = calendar.show_restored(week.shop.postgres.url, week.aged)
    with redis.Redis.from_url(week.shop.valkey.url) as client:
        client.ping()
    findings = audit(
        database=url,
        acknowledged=week.customers.acknowledged,
        accepted=week.shop.accepted(),
        seen=listener.seen,
        losses=week.losses,
    )
    with psycopg.connect(url, autocommit=True) as connection:
        for table, column in (("orders", "email"), ("email_notifications", "recipient_email")):
            left: Sequence[Any] = connection.execute(
                f"SELECT id::text FROM {table} WHERE {column} = ANY(%s)".encode(), [week.erased]
            ).fetchall()
            findings.wrong += [f"{table} {id} still names an erased customer" for (id,) in left]
    return findings
