"""Measure orders placed and paid through `make run`: latency, mails, queues, and each process's CPU.

Each order has two writes. Mails and events are sent, and the mailbox posts its webhooks.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import percentile, table
from benchmarks.shop import Shop, busy
from local.machine import PROJECT, guarded

PEAK = 167.0  # orders a second: 10,000 a minute
SETTINGS = {"EMAIL_RATE_LIMIT": "1000"}
DRAIN_SECONDS = 60
IDLE_SECONDS = 5

_WAITING = """
    SELECT (SELECT count(*) FROM email_notifications WHERE status IN ('pending', 'processing', 'failed'))
        + (SELECT count(*) FROM outbox_events WHERE published_at IS NULL)
"""
#: Bytes of each table with its indexes and dead versions, and of the WAL; partitions count as their parent.
_BYTES = """
    SELECT coalesce(pg_partition_root(c.oid), c.oid)::regclass::text,
        sum(pg_total_relation_size(c.oid))::float8
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'public' AND c.relkind = 'r' GROUP BY 1
    UNION ALL SELECT 'WAL', pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8
"""
_SESSIONS = """
    SELECT count(*)::float8 FROM pg_stat_activity
    WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
_MAILS = """
    SELECT extract(epoch FROM sent_at - created_at)::float8 * 1000, delivered_at IS NOT NULL
    FROM email_notifications WHERE correlation_id = %s AND status = 'sent'
"""


def measure(shop: Shop, *, rate: float, seconds: float) -> dict[str, Any]:
    """Place and pay orders at a rate, and wait until every mail and event is sent.

    Times are in ms. CPU (ms) and bytes are those of one order.
    """
    shop.load(rate=min(rate, 40), orders=int(min(rate, 40) * 6), run="warm-" + uuid.uuid4().hex[:8])
    _drained(shop, 10)
    idle, rested = shop.cpu(), time.monotonic()
    time.sleep(IDLE_SECONDS)
    idling = (sum(shop.cpu().values()) - sum(idle.values())) / (time.monotonic() - rested)
    orders, run = int(rate * seconds), uuid.uuid4().hex[:8]
    sizes: dict[str, float] = dict(shop.query(_BYTES))
    cpu, machine, began = shop.cpu(), busy(), time.monotonic()
    with _Queue(shop) as queue:
        seen = shop.load(rate=rate, orders=orders, run=run)
    loaded = time.monotonic() - began
    drained = _drained(shop, DRAIN_SECONDS)
    took, used = time.monotonic() - began, shop.cpu()
    spent = {kind: used[kind] - cpu.get(kind, 0.0) for kind in used}
    grown = {name: size - sizes.get(name, 0.0) for name, size in shop.query(_BYTES)}
    mails = shop.query(_MAILS, run)
    statuses: dict[str, int] = seen["statuses"]
    done = min(statuses.get("201", 0), statuses.get("200", 0))
    writes = seen["place"] + seen["pay"]
    waits = [wait for wait, _ in mails]
    return {
        "orders": done,
        "errors": sum(count for status, count in statuses.items() if status not in ("200", "201")),
        "refused, share": len(seen["refused"]) / (len(seen["refused"]) + len(writes)),
        "refused p99": percentile(seen["refused"], 0.99) if seen["refused"] else 0.0,
        **{f"write {name}": percentile(writes, share) for name, share in SHARES.items()},
        "place p99": percentile(seen["place"], 0.99),
        "pay p99": percentile(seen["pay"], 0.99),
        **{f"mail {name}": percentile(waits, share) for name, share in SHARES.items()},
        "mails sent": float(len(waits)),
        "delivered by webhook": float(sum(there for _, there in mails)),
        "queue at half": float(queue.at(loaded / 2)),
        "queue at end": float(queue.at(loaded)),
        "seconds to drain": drained,
        "CPU ms": sum(spent.values()) / max(done, 1) * 1000,
        **{f"CPU ms {kind}": value / max(done, 1) * 1000 for kind, value in sorted(spent.items())},
        **{f"bytes {name}": size / max(done, 1) for name, size in sorted(grown.items()) if size > 0},
        "sessions": shop.query(_SESSIONS)[0][0],
        "idle, cores": idling,
        "client CPU ms": seen["cpu"] / max(done, 1) * 1000,
        "client late p99": percentile(seen["late"], 0.99),
        "others' cores": max(0.0, busy() - machine - sum(spent.values()) - seen["cpu"]) / took,
    }


SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


class _Queue:
    """Samples the number of waiting mails and events every two seconds."""

    def __init__(self, shop: Shop) -> None:
        self.shop, self.samples, self.stop = shop, [(0.0, 0)], threading.Event()
        self.thread = threading.Thread(target=self._sample)

    def __enter__(self) -> _Queue:
        self.began = time.monotonic()
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()
        self.samples.append((time.monotonic() - self.began, _waiting(self.shop)))

    def _sample(self) -> None:
        while not self.stop.wait(2.0):
            self.samples.append((time.monotonic() - self.began, _waiting(self.shop)))

    def at(self, second: float) -> int:
        """Return the sample nearest to a time."""
        return min(self.samples, key=lambda entry: abs(entry[0] - second))[1]


def _waiting(shop: Shop) -> int:
    """Return the number of waiting mails and events."""
    return int(shop.query(_WAITING)[0][0])


def _drained(shop: Shop, seconds: float) -> float:
    """Wait until no mail or event waits, for at most `seconds`. Return the seconds waited."""
    began = time.monotonic()
    while _waiting(shop) and time.monotonic() - began < seconds:
        time.sleep(0.5)
    return time.monotonic() - began


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Run processes that each take as much of a core as the kernel gives them."""
    command = guarded([sys.executable, "-I", "-S", "-c", "while True: pass"])
    loops = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure_checkout(
    checkout: Path, *, rate: float, seconds: float, rounds: int, loops: int = 0
) -> dict[str, Any]:
    """Start a checkout's `make run` on new data and measure it next to `loops` busy loops."""
    with Shop(checkout, **SETTINGS) as shop, busy_loops(loops):
        memory = shop.memory()
        results = [measure(shop, rate=rate, seconds=seconds) for _ in range(rounds)]
        return median(results) | {"memory MB": memory, "settings": shop.facts()}


def median(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the median of each figure."""
    return {
        name: statistics.median(result[name] for result in results)
        if isinstance(value, int | float)
        else value
        for name, value in results[0].items()
        if all(name in result for result in results)
    }


def compare(
    other: Path | None, *, pairs: int, rate: float, seconds: float, rounds: int = 1, loops: int = 0
) -> str:
    """Measure this tree, or another checkout and this tree in turns. Return Markdown."""
    checkouts = {"this tree": PROJECT} if other is None else {"other": other, "this tree": PROJECT}
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in checkouts}
    for number in range(pairs):
        for name in checkouts if number % 2 == 0 else reversed(checkouts):
            result = measure_checkout(checkouts[name], rate=rate, seconds=seconds, rounds=rounds, loops=loops)
            results[name].append(result)
            print(f"  {name}: {summary(result)}", flush=True)
    medians = {name: median(several) for name, several in results.items()}
    rows = [["", *medians, *(["ratio"] if other else [])]]
    for figure in dict.fromkeys(name for figures in medians.values() for name in figures):
        values = [figures.get(figure) for figures in medians.values()]
        if isinstance(values[-1] if values[-1] is not None else values[0], int | float):
            row = [figure, *("" if value is None else f"{value:,.2f}" for value in values)]
            rows.append(row + ([_ratio(results, figure)] if other else []))
    settings = "\n".join(f"- {name}: {_said(figures['settings'])}" for name, figures in medians.items())
    note = f"{rate:g} orders a second for {rounds} × {seconds:g} s, each placed and paid; medians of {pairs}."
    return f"{table(rows)}\n\n{note}\n\n{settings}"


def _ratio(results: dict[str, list[dict[str, Any]]], figure: str) -> str:
    before, now = results.values()
    ratios = [
        after[figure] / base[figure]
        for base, after in zip(before, now, strict=True)
        if base.get(figure) and figure in after
    ]
    return f"{statistics.median(ratios):.2f}" if ratios else ""


def _said(settings: dict[str, str]) -> str:
    return "; ".join(f"{name} {value}" for name, value in settings.items())


def summary(result: dict[str, Any]) -> str:
    """Return the figures that matter most, in one line."""
    names = (
        "orders",
        "errors",
        "refused, share",
        "write p50",
        "write p99",
        "mail p99",
        "queue at end",
        "CPU ms",
        "others' cores",
    )
    return ", ".join(f"{name} {result[name]:.2f}" for name in names)
