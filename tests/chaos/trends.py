"""Measure what each process, PostgreSQL and Valkey use, and check that it stays flat.

Flat means: the Theil-Sen slope (the median of the slopes between any two samples) after the first quarter of
a run, times that time, is within `BOUNDS`. A single sample that a fault has raised does not change it. A
process that a fault started again has no trend, because a young process still fills its pools and caches.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import psycopg
import redis

from tests.kit.shop import Shop
from tests.kit.waiting import PATIENCE

INTERVAL = 30.0
MB = 1e6

# Dead rows beyond those that autovacuum waits for: a partition may keep 50,000, another table a fifth.
PG = """
    SELECT count(*) FILTER (WHERE backend_type = 'client backend' AND pid <> pg_backend_pid())::float,
        (SELECT count(*) FROM pg_replication_slots)::float,
        (
            SELECT sum(greatest(n_dead_tup - coalesce(
                (
                    SELECT option_value::float FROM pg_options_to_table(reloptions)
                    WHERE option_name = 'autovacuum_vacuum_threshold'
                ),
                50 + 0.2 * greatest(reltuples, 0)
            ), 0))
            FROM pg_stat_user_tables JOIN pg_class ON pg_class.oid = relid
        )
    FROM pg_stat_activity
"""
PG_NAMES = ("connections", "slots", "overdue dead rows")


@dataclasses.dataclass(frozen=True)
class Sample:
    """One measurement: `at` in seconds since the run began, and values by subject and metric."""

    at: float
    values: dict[str, dict[str, float]]


def look_at_group(leader: int) -> dict[str, float] | None:
    """Return what the processes of a session use together, or None without a process."""
    names = [path.name for path in Path("/proc").iterdir()]
    pids = [int(name) for name in names if name.isdigit() and _session(name) == leader]
    used: dict[str, float] = defaultdict(float)
    for pid in pids:
        try:
            memory = Path(f"/proc/{pid}/smaps_rollup").read_text()
            files = _count(Path(f"/proc/{pid}/fd"))
            threads = _count(Path(f"/proc/{pid}/task"))
        except OSError:
            continue
        lines = dict(line.split(":", 1) for line in memory.splitlines()[1:])
        # Without files such as libraries, which all programs of the machine share that use the same ones.
        used["own memory"] += int(lines["Pss_Anon"].split()[0]) * 1024
        used["files"] += files
        used["threads"] += threads
        used["processes"] += 1
    return dict(used) or None


def _count(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir())


def _session(pid: str) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
    except (OSError, ValueError):
        return 0


class Sampler:
    """`with Sampler(shop) as sampler:` measures every `INTERVAL` seconds, without servers that are away."""

    def __init__(self, shop: Shop) -> None:
        self.samples: list[Sample] = []
        self._shop = shop
        self._began = time.monotonic()
        self._started: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL):
            self.samples.append(self._sample())

    def _sample(self) -> Sample:
        now = time.monotonic()
        values: dict[str, dict[str, float]] = {}
        for name, process in list(self._shop.processes.items()):
            age = now - self._started.setdefault(process.pid, now)
            if (used := look_at_group(process.pid)) is not None:
                values[name] = used | {"age": age}
        return Sample(now - self._began, values | self._postgres() | self._valkey())

    def _postgres(self) -> dict[str, dict[str, float]]:
        try:
            with psycopg.connect(self._shop.postgres.url, autocommit=True, connect_timeout=3) as connection:
                connection.execute("SET statement_timeout = '5s'")
                row = connection.execute(PG.encode()).fetchone()
        except psycopg.Error:
            return {}
        assert row is not None
        return {"postgres": dict(zip(PG_NAMES, row, strict=True))}

    def _valkey(self) -> dict[str, dict[str, float]]:
        client = redis.Redis.from_url(self._shop.valkey.url, socket_timeout=3, socket_connect_timeout=1)
        try:
            with client:
                memory: Any = client.info("memory")
                # Streams fill up to their length after each FLUSHALL, and nobody trims that of the payments.
                streams = sum(
                    client.memory_usage(key, samples=0) or 0 for key in client.scan_iter(_type="stream")
                )
                clients: Any = client.info("clients")
                keys: Any = client.dbsize()
        except redis.RedisError:
            return {}
        used = float(memory["used_memory_dataset"] - streams)
        return {"valkey": {"memory": used, "keys": float(keys), "clients": clients["connected_clients"]}}


#: How much each metric may grow after the first quarter: this amount, or a share of its median. A process
#: that was started again has few sessions until all of its threads have worked, so those of both servers go
#: up and down by a third.
BOUNDS: dict[str, tuple[float, float]] = {
    "own memory": (4 * MB, 0.05),
    "files": (6, 0.1),
    "threads": (3, 0.1),
    "connections": (4, 0.3),
    "slots": (0.5, 0),
    "overdue dead rows": (20_000, 0.5),
    "memory": (2 * MB, 0.2),
    "keys": (10, 0.1),
    "clients": (5, 0.4),
}


class Trend(NamedTuple):
    """A metric's medians in the first and the last third, its growth, and the allowed growth."""

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


def trends(samples: Sequence[Sample]) -> list[Trend]:
    """Return the trends of servers, and of processes that ran all the time, after its first quarter."""
    lines: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    quarter = max((sample.at for sample in samples), default=0.0) / 4
    later = [sample for sample in samples if sample.at >= quarter]
    young = {
        what
        for sample in later
        for what, metrics in sample.values.items()
        if metrics.get("age", sample.at) < sample.at - quarter
    }
    for sample in later:
        for what, metrics in sample.values.items():
            if what in young:
                continue
            for metric, value in metrics.items():
                if metric in BOUNDS:
                    lines[what, metric].append((sample.at, value))
    return [_trend(what, metric, points) for (what, metric), points in sorted(lines.items())]


def _trend(what: str, metric: str, points: Sequence[tuple[float, float]]) -> Trend:
    least, share = BOUNDS[metric]
    values = [value for _, value in points]
    third = max(1, len(values) // 3)
    return Trend(
        what,
        metric,
        early=statistics.median(values[:third]),
        late=statistics.median(values[-third:]),
        growth=slope(points) * (points[-1][0] - points[0][0]),
        bound=max(least, share * statistics.median(values)),
        samples=len(points),
    )


def describe(trends: Sequence[Trend]) -> Iterator[str]:
    """Return lines about the metrics that grow, or about those that are nearest to their bounds."""
    if not trends:
        return
    growing = [trend for trend in trends if not trend.flat]
    yield f"{len(trends)} trends, {len(growing)} grow:"
    for trend in growing or sorted(trends, key=lambda trend: trend.growth / trend.bound)[-8:]:
        unit = MB if BOUNDS[trend.metric][0] >= 1e6 else 1.0
        yield (
            f"  {trend.what}, {trend.metric}: {trend.early / unit:.1f} to {trend.late / unit:.1f}, growth"
            f" {trend.growth / unit:+.2f} of {trend.bound / unit:.2f} allowed, {trend.samples} samples"
        )
