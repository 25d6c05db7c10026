"""`make bench`: every measurement of docs/performance.md.

    python -m benchmarks [--quick] [--only orders,drain,enqueue,growth,snapshot,relay,triggers,restore]
    python -m benchmarks --checkout ../release-0.1.0 --pairs 5 [--cost] [--rate 167] [--seconds 60]

The first measures this tree: `orders` on `make run` as it ships, the other parts on servers of their own. A
full run (some 40 minutes) writes benchmarks/results.md and the chart; --quick and --only print. The second
measures `orders` on another checkout, which must be set up, and on this tree in turns. With --cost the rate
is 50 for 30 s: the CPU of each order can be compared so while the machine has other work, too.
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

from benchmarks import charts, drain, enqueue, growth, orders, relay, restore, triggers
from benchmarks.orders import PEAK, table
from benchmarks.rig import Rig

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


def median_of(found: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each value over the rounds."""
    return {name: statistics.median(one[name] for one in found) for name in found[0]}


class Bench:
    """The parts; each returns its section in Markdown."""

    def __init__(
        self, *, quick: bool, rate: float | None, seconds: float | None, triggers_named: list[str]
    ) -> None:
        self.quick, self.rate, self.seconds = quick, rate, seconds
        self.triggers_named = triggers_named

    def orders(self) -> str:
        """Measure orders placed and paid through `make run`, with everything on the machine."""
        return orders.compare(
            None, pairs=1, rate=PEAK, seconds=15 if self.quick else 60, rounds=1 if self.quick else 3
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

    def triggers(self) -> str:
        """Measure the time from a commit to the provider's yes, by what says that a mail is due."""
        rates = (1, 50) if self.quick else (1, 50, 167)
        return triggers.compare(
            rates=(self.rate,) if self.rate else rates,
            seconds=self.seconds or (10 if self.quick else 60),
            names=self.triggers_named,
        )

    def restore(self) -> str:
        """Measure what a lost database machine costs, in changes and in time."""
        rows = 20_000 if self.quick else 1_000_000
        return restore.measure(rows=rows, seconds=self.seconds or 150, rate=self.rate or 20)


TITLES = {
    "orders": "Orders placed and paid, with everything on the machine",
    "drain": "Draining a backlog",
    "enqueue": "Saving a change with its mail",
    "growth": "Beside millions of sent rows",
    "snapshot": "While a session holds its snapshot",
    "relay": "Relaying events",
    "triggers": "From the commit to the provider, by trigger",
    "restore": "The database's machine is lost",
}


def main() -> None:
    """Run the parts, print them, and keep a full run's results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="under three minutes, prints only")
    parser.add_argument("--only", default=",".join(TITLES), help="parts, separated by commas; prints only")
    parser.add_argument("--checkout", type=Path, help="another checkout, set up, to compare `orders` with")
    parser.add_argument("--pairs", type=int, default=0, help="how often `orders` is measured on each")
    parser.add_argument("--cost", action="store_true", help="`orders` at 50 a second for 30 s: CPU, no peak")
    parser.add_argument(
        "--together", action="store_true", help="both checkouts at the same time, side by side"
    )
    parser.add_argument(
        "--trigger", action="append", choices=list(triggers.TRIGGERS), help="of `triggers`, this one alone"
    )
    parser.add_argument("--rate", type=float, help="orders a second")
    parser.add_argument("--seconds", type=float, help="how long each")
    given = parser.parse_args()
    if given.pairs or given.checkout or given.cost:
        rate, seconds = (
            given.rate or (50 if given.cost else PEAK),
            given.seconds or (30 if given.cost else 60),
        )
        print(
            orders.compare(
                given.checkout, pairs=given.pairs or 1, rate=rate, seconds=seconds, together=given.together
            )
        )
        return
    parts = given.only.split(",")
    if unknown := set(parts) - set(TITLES):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(TITLES)}")
    bench = Bench(
        quick=given.quick, rate=given.rate, seconds=given.seconds, triggers_named=given.trigger or []
    )
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
