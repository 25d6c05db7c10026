"""`make bench`: the measurements of docs/measurements.md.

    python -m benchmarks [--quick] [--only orders,drain,enqueue,events,ways,tiers]
    python -m benchmarks --checkout ../older --pairs 5 [--cost] [--rate 167] [--seconds 60] [--busy 1]

The first command measures this tree and prints Markdown: `orders` on an unchanged `make run`, the other parts
on separate servers. The second measures `orders` in turns on this tree and on another checkout, which must be
set up. With --cost the rate is 50 for 30 s, so that the CPU of each order is comparable even if the machine
has other work. `--busy` adds processes that each take a core.
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import platform
import statistics
import sys
from pathlib import Path

from benchmarks import drain, enqueue, events, orders, tiers, ways
from benchmarks.figures import table
from benchmarks.orders import PEAK
from benchmarks.rig import Rig

#: The drainers, and the threads in each of their two processes.
DRAINERS = {
    "orderpost × 64": ("orderpost", 64),
    "orderpost × 32": ("orderpost", 32),
    "post_office × 20": ("post_office", 20),
    "post_office × 64": ("post_office", 64),
    "task for each × 20": ("task_each", 20),
}


def median_of(rounds: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of each value over the rounds."""
    return {name: statistics.median(result[name] for result in rounds) for name in rounds[0]}


def measure_orders(*, quick: bool) -> str:
    """Measure orders placed and paid through `make run`, with everything on the machine."""
    return orders.compare(None, pairs=1, rate=PEAK, seconds=15 if quick else 60, rounds=1 if quick else 3)


def measure_drain(*, quick: bool) -> str:
    """Measure the rate at which queued mails are drained."""
    count, rounds = (2000, 1) if quick else (10_000, 3)
    delays = [0.02] if quick else [0.0, 0.02, 0.1]
    few = {"task_each": 0.5}  # it is slow, so fewer mails are enough
    results_by_delay: dict[float, dict[str, list[dict[str, float]]]] = {delay: {} for delay in delays}
    with Rig(EMAIL_RATE_LIMIT="0", LOG_LEVEL="WARNING") as rig:
        drain.prepare(rig)
        for _ in range(rounds):
            for delay in delays:
                for name, (who, threads) in DRAINERS.items():
                    if quick and name in ("orderpost × 32", "post_office × 64"):
                        continue
                    mails = int(count * few.get(who, 1))
                    result = drain.measure(rig, who, count=mails, delay=delay, threads=threads)
                    results_by_delay[delay].setdefault(name, []).append(result)
                    print(f"  {delay * 1000:.0f} ms {name}: {result['mails/s']:.0f}/s", file=sys.stderr)
    rows = [
        [
            "provider's delay",
            "who",
            "mails/s",
            "ratio",
            "CPU ms a mail",
            "ratio",
            "PostgreSQL ms",
        ]
    ]
    for delay, by_name in results_by_delay.items():
        medians = {name: median_of(results) for name, results in by_name.items()}
        best = max(medians, key=lambda name: medians[name]["mails/s"] if "orderpost" in name else 0)
        for name, medians_of_row in medians.items():
            rows.append(
                [
                    f"{delay * 1000:.0f} ms",
                    name,
                    f"{medians_of_row['mails/s']:,.0f}",
                    f"{medians[best]['mails/s'] / medians_of_row['mails/s']:.1f}",
                    f"{medians_of_row['cpu ms']:.2f}",
                    f"{medians[best]['cpu ms'] / medians_of_row['cpu ms']:.2f}",
                    f"{medians_of_row['postgres ms']:.2f}",
                ]
            )
    note = (
        f"{count:,} mails of 4 kB (a task for each: half as many),"
        f" two processes × the threads named, median of {rounds}. Ratios: orderpost's best to this row."
    )
    return f"{table(rows)}\n\n{note}"


def measure_enqueue(*, quick: bool) -> str:
    """Measure the CPU of saving a change and its mail."""
    count, rounds = (500, 1) if quick else (2000, 3)
    with Rig() as rig:
        drain.prepare(rig)
        medians = median_of([enqueue.measure(rig, count) for _ in range(rounds)])
    ours = medians["orderpost, the text given"]
    rows = [["who", "CPU ms a change", "ours / this"]]
    rows += [[name, f"{value:.2f}", f"{ours / value:.2f}"] for name, value in medians.items()]
    return table(rows)


TITLES = {
    "orders": "Orders placed and paid, with everything on the machine",
    "drain": "Draining a backlog",
    "enqueue": "Saving a change with its mail",
    "events": "Events of another system's orders",
    "ways": "An order by each way in",
    "tiers": "Months of e-mails, detached and cold",
}
#: Only by --only: it takes an hour and 25 GB of disk.
LONG = {"tiers"}


def main() -> None:
    """Run the selected parts and print their results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="about three minutes")
    parser.add_argument(
        "--only",
        default=",".join(name for name in TITLES if name not in LONG),
        help="parts, separated by commas",
    )
    parser.add_argument(
        "--checkout", type=Path, help="compare `orders` with this checkout, which must be set up"
    )
    parser.add_argument("--pairs", type=int, default=0, help="measurements of `orders` on each")
    parser.add_argument(
        "--cost", action="store_true", help="`orders` at 50 a second for 30 s, to compare CPU"
    )
    parser.add_argument("--rate", type=float, help="orders a second")
    parser.add_argument("--seconds", type=float, help="seconds of each measurement")
    parser.add_argument("--busy", type=int, default=0, help="busy loops next to `orders`")
    options = parser.parse_args()
    if options.pairs or options.checkout or options.cost:
        rate = options.rate or (50 if options.cost else PEAK)
        seconds = options.seconds or (30 if options.cost else 60)
        pairs = options.pairs or 1
        print(orders.compare(options.checkout, pairs=pairs, rate=rate, seconds=seconds, loops=options.busy))
        return
    parts = options.only.split(",")
    if unknown := set(parts) - set(TITLES):
        parser.error(f"unknown part: {', '.join(sorted(unknown))}. Use {', '.join(TITLES)}")
    print(f"{machine()}\n", flush=True)
    for part in parts:
        print(f"{part} …", file=sys.stderr)
        if part == "orders":
            text = measure_orders(quick=options.quick)
        elif part == "drain":
            text = measure_drain(quick=options.quick)
        elif part == "events":
            text = events.compare(count=500 if options.quick else 3000, rounds=1 if options.quick else 3)
        elif part == "ways":
            text = ways.compare(count=300 if options.quick else 1500, rounds=1 if options.quick else 3)
        elif part == "tiers":
            text = tiers.compare(quick=options.quick)
        else:
            text = measure_enqueue(quick=options.quick)
        print(f"## {TITLES[part]}\n\n{text}\n", flush=True)


def machine() -> str:
    """Return the facts of this machine that affect the figures."""
    facts = {
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "Python": platform.python_version(),
        "kernel": platform.release(),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }
    return "Everything shares this machine: " + ", ".join(f"{name} {value}" for name, value in facts.items())


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.machine()


if __name__ == "__main__":
    main()
