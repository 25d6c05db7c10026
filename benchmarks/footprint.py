"""`python -m benchmarks.footprint`: bytes on disk and in the WAL, sessions and memory of placed orders.

It starts `make run` and buys in it. docs/growth.md is calculated from the figures.
"""

from __future__ import annotations

import argparse
import re
import time
import uuid
from pathlib import Path

from benchmarks.orders import SETTINGS, table, waiting
from benchmarks.shop import Shop

_TABLES = """
    SELECT coalesce(pg_partition_root(c.oid), c.oid)::regclass::text,
        sum(pg_table_size(c.oid))::bigint, sum(pg_indexes_size(c.oid))::bigint
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') GROUP BY 1 ORDER BY 1
"""
_ROWS = """
    SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM email_notifications),
        (SELECT count(*) FROM outbox_events)
"""
_WAL = "SELECT wal_bytes::bigint, wal_fpi::bigint FROM pg_stat_wal"
_SESSIONS = (
    "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)


def measure(shop: Shop, *, rate: float, orders: int) -> str:
    """Place and pay orders, wait until all is sent and return three tables in Markdown."""
    shop.load(rate=20, orders=100, run=uuid.uuid4().hex[:8])
    _settle(shop)
    tables, counts, wal = _sizes(shop), shop.query(_ROWS)[0], shop.query(_WAL)[0]
    shop.load(rate=rate, orders=orders, run=uuid.uuid4().hex[:8])
    sessions, memory = shop.query(_SESSIONS)[0][0], _memory(shop)
    _settle(shop)
    rows = [["table", "bytes for an order", "indexes of it"]]
    for name, (data, indexes) in _sizes(shop).items():
        before = tables.get(name, (0, 0))
        if data + indexes > sum(before):
            added = data - before[0], indexes - before[1]
            rows.append([name, f"{sum(added) / orders:,.0f}", f"{added[1] / orders:,.0f}"])
    now, logged = shop.query(_ROWS)[0], shop.query(_WAL)[0]
    grown = [after - before for before, after in zip(counts, now, strict=True)]
    facts = [
        ["", "", ""],
        ["orders, e-mails, events added", ", ".join(map(str, grown)), ""],
        ["WAL bytes for an order", f"{(logged[0] - wal[0]) / orders:,.0f}", ""],
        ["full page images", f"{logged[1] - wal[1]}", ""],
        ["sessions", str(sessions), ""],
    ]
    classes = [["class", "processes", "PSS, MB"]]
    classes += [[kind, str(count), f"{size:.0f}"] for kind, (count, size) in sorted(memory.items())]
    return "\n\n".join(map(table, (rows, facts, classes)))


def _settle(shop: Shop) -> None:
    deadline = time.monotonic() + 30
    while waiting(shop) and time.monotonic() < deadline:
        time.sleep(0.5)
    time.sleep(3)  # the mailbox's webhooks and the last events


def _sizes(shop: Shop) -> dict[str, tuple[int, int]]:
    return {name: (data, indexes) for name, data, indexes in shop.query(_TABLES)}


def _memory(shop: Shop) -> dict[str, tuple[int, float]]:
    found: dict[str, tuple[int, float]] = {}
    for pid, kind, _ in shop.processes():
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        if size := re.search(r"^Pss:\s+(\d+)", rollup, re.MULTILINE):
            count, total = found.get(kind, (0, 0.0))
            found[kind] = count + 1, total + int(size[1]) / 1024
    return found


def main() -> None:
    """Start a shop, measure it and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=60)
    parser.add_argument("--orders", type=int, default=6000)
    options = parser.parse_args()
    with Shop(**SETTINGS) as shop:
        print(measure(shop, rate=options.rate, orders=options.orders))


if __name__ == "__main__":
    main()
