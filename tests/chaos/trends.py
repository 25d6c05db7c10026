"""Measure what each process, PostgreSQL, Valkey and the disk use, and check that it stays flat.

Flat means: the Theil-Sen slope (the median of the slopes between any two samples) from the second day to the
end, times that time, is within `BOUNDS`. A single sample that a fault has raised does not change it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import redis
import requests

from local.machine import HOST
from tests.kit.shop import PAYMENT, Shop

INTERVAL = 30.0
#: Compare a process with itself only after this age in seconds, because before it still loads its code.
GROWN = 60.0
MB = 1e6

PG = """
    SELECT (SELECT json_object_agg(name, count) FROM (
            SELECT coalesce(nullif(application_name, ''), backend_type) AS name, count(*)
            FROM pg_stat_activity
            WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() GROUP BY 1) AS one),
        (SELECT count(*) FROM pg_replication_slots),
        (SELECT coalesce(max(extract(epoch FROM now() - xact_start)), 0)::float FROM pg_stat_activity
            WHERE backend_type = 'client backend'),
        (SELECT sum(n_dead_tup) FROM pg_stat_user_tables)::float,
        (SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables)::float,
        (SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables
            WHERE relname ~ '^email_')::float,
        (SELECT sum(pg_total_relation_size(relid)) FROM pg_stat_user_tables
            WHERE relname ~ '^outbox_')::float,
        (SELECT sum(size) FROM pg_ls_waldir())::float,
        (SELECT count(*) FROM email_notifications WHERE status <> 'sent'),
        (SELECT count(*) FROM outbox_events WHERE published_at IS NULL)
"""
PG_NAMES = (
    *("connections", "slots", "oldest transaction", "dead tuples", "tables", "e-mail tables"),
    *("event tables", "wal", "unsent", "unpublished"),
)


@dataclasses.dataclass(frozen=True)
class Sample:
    """One measurement: `at` in seconds since the week began, and values by subject and metric."""

    at: float
    values: dict[str, dict[str, float]]


def look_at_group(leader: int) -> dict[str, float] | None:
    """Return what the processes of a session use together, or None without a process."""
    names = [path.name for path in Path("/proc").iterdir()]
    pids = [int(name) for name in names if name.isdigit() and _session(name) == leader]
    found: dict[str, float] = defaultdict(float)
    for pid in pids:
        try:
            memory = Path(f"/proc/{pid}/smaps_rollup").read_text()
            files = _count(Path(f"/proc/{pid}/fd"))
            threads = _count(Path(f"/proc/{pid}/task"))
        except OSError:
            continue
        lines = dict(line.split(":", 1) for line in memory.splitlines()[1:])
        found["pss"] += int(lines["Pss"].split()[0]) * 1024
        found["rss"] += int(lines["Rss"].split()[0]) * 1024
        found["files"] += files
        found["threads"] += threads
        found["processes"] += 1
    return dict(found) or None


def _count(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir())


def _session(pid: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, ValueError):
        return 0


class Sampler:
    """Measure every `INTERVAL` seconds in a thread. A server that is away has no values."""

    def __init__(
        self, shop: Shop, *, began: float, archives: Path, scraped: Iterable[int], interval: float = INTERVAL
    ) -> None:
        self.samples: list[Sample] = []
        self._shop, self._began, self._archives, self._interval = shop, began, archives, interval
        self._started: dict[int, float] = {}
        self._scraped = list(scraped)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self.samples.append(self._sample())

    def _sample(self) -> Sample:
        now = time.monotonic()
        values: dict[str, dict[str, float]] = {}
        for port in self._scraped:  # because a scrape adds up the files of exited processes
            with contextlib.suppress(requests.RequestException):
                requests.get(f"http://{HOST}:{port}/metrics", timeout=3)
        for name, process in list(self._shop.processes.items()):
            age = now - self._started.setdefault(process.pid, now)
            if (found := look_at_group(process.pid)) is not None:
                values[name] = found | {"age": age}
        values |= self._postgres() | self._valkey()
        values["disk"] = {
            "logs": _size(self._shop.folder, "*.log"),
            "archives": _size(self._archives, "**/*"),
            "metrics files": float(len(list(self._shop.folder.glob("metrics-*/*.db")))),
        }
        return Sample(now - self._began, values)

    def _postgres(self) -> dict[str, dict[str, float]]:
        try:
            with psycopg.connect(self._shop.postgres.url, autocommit=True, connect_timeout=3) as connection:
                connection.execute("SET statement_timeout = '5s'")
                row = connection.execute(PG.encode()).fetchone()
        except psycopg.Error:
            return {}
        assert row is not None
        connections, *others = row
        found = {"postgres": dict(zip(PG_NAMES[1:], map(float, others), strict=True))}
        found["postgres"]["connections"] = float(sum((connections or {}).values()))
        return found | {f"sessions of {name}": {"connections": float(n)} for name, n in connections.items()}

    def _valkey(self) -> dict[str, dict[str, float]]:
        client = redis.Redis.from_url(self._shop.valkey.url, socket_timeout=3, socket_connect_timeout=1)
        try:
            with client:
                memory: Any = client.info("memory")
                payments: Any = client.memory_usage(
                    PAYMENT
                )  # because no process trims what the customers write
                clients: Any = client.info("clients")
                keys: Any = client.dbsize()
        except redis.RedisError:
            return {}
        used = float(memory["used_memory_dataset"] - (payments or 0))
        return {"valkey": {"memory": used, "keys": float(keys), "clients": clients["connected_clients"]}}


def _size(folder: Path, pattern: str) -> float:
    total = 0.0
    for path in folder.glob(pattern):
        try:
            total += path.stat().st_size
        except OSError:
            continue
    return total


#: How much each metric may grow from the second day to the end: this amount, or a share of its median.
BOUNDS: dict[str, tuple[float, float]] = {
    "pss": (4 * MB, 0.05),
    "files": (6, 0.1),
    "threads": (3, 0.1),
    "connections": (4, 0.1),
    "slots": (0.5, 0),
    "dead tuples": (20_000, 0.5),
    "memory": (2 * MB, 0.2),
    "keys": (10, 0.1),
    "clients": (5, 0.1),
    "metrics files": (4, 0.2),
}
#: Values that should grow, such as orders, and logs that another program rotates. They are only shown.
SHOWN = ("tables", "e-mail tables", "event tables", "wal", "logs", "archives")


class Trend(NamedTuple):
    """A metric's medians on the second day and at the end, its growth, and the allowed growth."""

    what: str
    metric: str
    early: float
    late: float
    growth: float
    bound: float
    samples: int

    @property
    def flat(self) -> bool:
        return self.growth <= self.bound


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Return the median of the slopes between any two points, or 0.0 for fewer than two.

    >>> slope([(0, 1), (1, 3), (2, 100), (3, 7), (4, 9)])
    2.0
    """
    pairs = itertools.combinations(points, 2)
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairs if b[0] != a[0]]
    return statistics.median(slopes) if slopes else 0.0


def trends(samples: Sequence[Sample], *, day_seconds: float) -> list[Trend]:
    """Return the trend of each bounded metric from the second day on."""
    lines: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for sample in samples:
        for what, metrics in sample.values.items():
            if sample.at < day_seconds or metrics.get("age", GROWN) < GROWN:
                continue
            for metric, value in metrics.items():
                if metric in BOUNDS:
                    lines[what, metric].append((sample.at, value))
    found = []
    for (what, metric), points in sorted(lines.items()):
        least, share = BOUNDS[metric]
        values = [value for _, value in points]
        span = points[-1][0] - points[0][0]
        early = [value for at, value in points if at < points[0][0] + day_seconds]
        late = [value for at, value in points if at > points[-1][0] - day_seconds]
        found.append(
            Trend(
                what,
                metric,
                statistics.median(early),
                statistics.median(late),
                slope(points) * span,
                max(least, share * statistics.median(values)),
                len(points),
            )
        )
    return found
