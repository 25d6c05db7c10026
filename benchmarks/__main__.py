"""`make bench`: every measurement of docs/performance.md, on servers of its own.

    python -m benchmarks [--quick] [--only writes,drain,enqueue,growth,snapshot,relay]

Rounds are interleaved, so that a noisy minute meets all alike; what is printed are medians and ratios. A full
run (some 25 minutes) writes benchmarks/results.md and the charts; --quick (under 3 minutes) and --only print.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import charts, drain, enqueue, growth, relay
from benchmarks.rig import Rig
from benchmarks.writes import Pipeline

HERE = Path(__file__).resolve().parent
#: Who drains, and with how many threads in each of two processes; the first of post_office's is issue 5's.
DRAINERS = {
    "orderpost × 64": ("orderpost", 64),
    "orderpost × 32": ("orderpost", 32),
    "post_office × 20": ("post_office", 20),
    "post_office × 64": ("post_office", 64),
    "task for each × 20": ("task_each", 20),
    "django-mailer": ("mailer", 1),
}
Table = list[list[str]]


def table(rows: Table) -> str:
    """Return a table in Markdown; its first row is the head."""
    head, *body = rows
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in body)])


def median_of(found: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each value over the rounds."""
    return {name: statistics.median(one[name] for one in found) for name in found[0]}


class Bench:
    """The parts; each returns its section in Markdown."""

    def __init__(self, *, quick: bool) -> None:
        self.quick = quick

    def writes(self) -> str:
        """Measure status changes through all processes."""
        rounds, seconds = (1, 15.0) if self.quick else (3, 60.0)
        rates = [200.0] if self.quick else [50.0, 100.0, 200.0, 230.0, 260.0, 300.0]
        with Rig(EMAIL_RATE_LIMIT="1000") as rig:
            pipeline = Pipeline(rig)
            main = [pipeline.run_at(rate=167, seconds=seconds) for _ in range(rounds)]
            ladder = [pipeline.run_at(rate=rate, seconds=min(20.0, seconds)) for rate in rates]
        middle = sorted(main, key=lambda one: one["write"]["p99"])[len(main) // 2]
        rows = [["167 changes a second, ms", "p50", "p95", "p99", "max"]]
        for key, name in (
            ("write", "write, from its intended start to the answer"),
            ("mail", "commit → accepted by the provider and recorded"),
            ("event", "commit → on the broker and recorded"),
        ):
            rows.append([name, *(f"{middle[key][share]:.0f}" for share in ("p50", "p95", "p99", "max"))])
        cpu = ", ".join(f"{name} {share:.0f}" for name, share in middle["cpu"].items() if share >= 1)
        p99s = ", ".join(f"{one['write']['p99']:.0f}" for one in main)
        steps = sorted([middle, *ladder], key=lambda one: one["rate"])
        climb = [["changes a second", "write p50, ms", "write p99, ms", "mail p99, ms", "errors"]]
        climb += [
            [
                f"{one['rate']:.0f}",
                f"{one['write']['p50']:.0f}",
                f"{one['write']['p99']:.0f}",
                f"{one['mail']['p99']:.0f}",
                str(one["errors"]),
            ]
            for one in steps
        ]
        if not self.quick:
            charts.lines(
                HERE / "writes.svg",
                title="Write latency with everything on two cores",
                unit="ms",
                x_unit="status changes a second",
                bar=50,
                series={
                    name: [(one["rate"], min(one["write"][name], 150.0)) for one in steps]
                    for name in ("p99", "p50")
                },
            )
        held = [one["rate"] for one in steps if one["write"]["p99"] < 50]
        return "\n\n".join(
            [
                table(rows),
                f"{len(main)} × {seconds:g} s, the median one; write p99 of all: {p99s} ms."
                f" Changes {sum(one['changes'] for one in main):,},"
                f" errors {sum(one['errors'] for one in main)},"
                f" mails sent {sum(one['sent'] for one in main):,}."
                f" The client was itself late by {middle['client late p99']:.1f} ms at p99."
                f" CPU in % of one core: {cpu}.",
                table(climb),
                f"Highest rate measured with p99 under 50 ms: {max(held, default=0):.0f} a second.",
            ]
        )

    def drain(self) -> str:
        """Measure how fast queued mails are drained."""
        count, rounds = (2000, 1) if self.quick else (10_000, 3)
        delays = [0.02] if self.quick else [0.0, 0.02, 0.1]
        few = {"task_each": 0.5, "mailer": 0.02}  # they are slow: what is left is enough to tell
        found: dict[float, dict[str, list[dict[str, float]]]] = {delay: {} for delay in delays}
        with Rig(EMAIL_RATE_LIMIT="0", LOG_LEVEL="WARNING") as rig:
            drain.prepare(rig)
            for _ in range(rounds):
                for delay in delays:
                    for name, (who, threads) in DRAINERS.items():
                        if self.quick and name in ("orderpost × 32", "post_office × 64"):
                            continue
                        mails = int(count * few.get(who, 1))
                        result = drain.measure(rig, who, count=mails, delay=delay, threads=threads)
                        found[delay].setdefault(name, []).append(result)
                        print(f"  {delay * 1000:.0f} ms {name}: {result['mails/s']:.0f}/s", file=sys.stderr)
        rows = [["provider's delay", "who", "mails/s", "ratio", "CPU ms a mail", "ratio", "PostgreSQL ms"]]
        groups: dict[str, dict[str, float]] = {}
        for delay, by_name in found.items():
            medians = {name: median_of(results) for name, results in by_name.items()}
            best = max(medians, key=lambda name: medians[name]["mails/s"] if "orderpost" in name else 0)
            for name, one in medians.items():
                rows.append(
                    [
                        f"{delay * 1000:.0f} ms",
                        name,
                        f"{one['mails/s']:,.0f}",
                        f"{medians[best]['mails/s'] / one['mails/s']:.1f}",
                        f"{one['cpu ms']:.2f}",
                        f"{medians[best]['cpu ms'] / one['cpu ms']:.2f}",
                        f"{one['postgres ms']:.2f}",
                    ]
                )
            groups[f"Provider answers after {delay * 1000:.0f} ms"] = {
                name: one["mails/s"] for name, one in medians.items()
            }
        if not self.quick:
            charts.bars(
                HERE / "drain.svg", title="Draining queued mails on two cores", unit="mails/s", groups=groups
            )
        note = (
            f"{count:,} mails of 4 kB (a task for each: half as many; django-mailer: a fiftieth),"
            f" two processes × the threads named, median of {rounds}. Ratios: our best row against this one."
        )
        return f"{table(rows)}\n\n{note}"

    def enqueue(self) -> str:
        """Measure how much it costs to save a change and its mail."""
        count, rounds = (500, 1) if self.quick else (2000, 3)
        with Rig() as rig:
            drain.prepare(rig)
            found = median_of([enqueue.measure(rig, count) for _ in range(rounds)])
        ours = found["orderpost, the text given"]
        rows = [["who", "CPU ms a change", "ours / this"]]
        rows += [[name, f"{value:.2f}", f"{ours / value:.2f}"] for name, value in found.items()]
        return table(rows)

    def growth(self) -> str:
        """Measure claims, a drain and the admin beside millions of sent rows."""
        sizes = (0, 100_000) if self.quick else (0, 1_000_000, 5_000_000)
        found = {}
        with Rig(durable=False, EMAIL_RATE_LIMIT="0", LOG_LEVEL="WARNING") as rig:
            for size in sizes:
                growth.grow(rig, to=size)
                rounds = [growth.measure(rig, count=5000) for _ in range(1 if self.quick else 3)]
                found[size] = median_of(rounds)
                print(f"  {size:,}: {found[size]}", file=sys.stderr)
        names = list(found[sizes[0]])
        rows = [["sent rows beside", *names]]
        rows += [[f"{size:,}", *(f"{found[size][name]:,.1f}" for name in names)] for size in sizes]
        return table(rows)

    def snapshot(self) -> str:
        """Measure drains while a session holds its snapshot."""
        count, rounds = (4000, 2) if self.quick else (10_000, 20)
        with Rig(EMAIL_RATE_LIMIT="0", LOG_LEVEL="WARNING") as rig:
            found = growth.held(rig, count=count, rounds=rounds)
        shown = found if len(found) < 6 else found[:: len(found) // 5]
        rows = [["snapshot held for", "mails/s", "PostgreSQL ms a mail"]]
        rows += [
            [f"{one['held for s']:.0f} s", f"{one['mails/s']:,.0f}", f"{one['postgres ms']:.2f}"]
            for one in shown
        ]
        return f"{table(rows)}\n\n{count * rounds:,} mails sent meanwhile, {count:,} at a time."

    def relay(self) -> str:
        """Measure how fast the relay publishes events."""
        with Rig(LOG_LEVEL="ERROR") as rig:
            found = median_of([relay.measure(rig, count=10_000) for _ in range(1 if self.quick else 3)])
        return (
            f"{found['events/s']:,.0f} events a second, {found['cpu µs']:.0f} µs of the relay's CPU for each."
        )


TITLES = {
    "writes": "Writes, with everything on the machine",
    "drain": "Draining a backlog",
    "enqueue": "Saving a change with its mail",
    "growth": "Beside millions of sent rows",
    "snapshot": "While a session holds its snapshot",
    "relay": "Relaying events",
}


def main() -> None:
    """Run the parts, print them, and keep a full run's results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="under three minutes, prints only")
    parser.add_argument("--only", default=",".join(TITLES), help="parts, separated by commas; prints only")
    given = parser.parse_args()
    parts = given.only.split(",")
    if unknown := set(parts) - set(TITLES):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(TITLES)}")
    bench = Bench(quick=given.quick)
    sections = []
    for part in parts:
        print(f"{part} …", file=sys.stderr)
        run: Callable[[], str] = getattr(bench, part)
        sections.append(f"## {TITLES[part]}\n\n{run()}")
        print(f"\n{sections[-1]}\n", flush=True)
    if len(parts) == len(TITLES) and not given.quick:
        text = "\n\n".join([_head(), *sections])
        (HERE / "results.md").write_text(text + "\n")


def _head() -> str:
    facts: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "Python": platform.python_version(),
        "kernel": platform.release(),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }
    said = ", ".join(f"{name} {value}" for name, value in facts.items())
    return (
        "# Results of `make bench`\n\nWritten by it; what they mean is in docs/performance.md."
        f" PostgreSQL 18, Valkey 9, web, workers, provider and client share the machine: {said}."
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.machine()


if __name__ == "__main__":
    main()
