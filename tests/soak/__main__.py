"""`make soak` (ARGS="--days 7 --day-minutes 8 --seed 3"): one week. Exit with 1 if anything is wrong."""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys

from local.machine import PROJECT
from tests.kit import alone


def main() -> int:
    alone.prepare()
    from tests.soak.report import text
    from tests.soak.week import run

    parser = argparse.ArgumentParser(prog="make soak", description="Let a week pass in an hour.")
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--day-minutes", type=float, default=8.0)
    parser.add_argument("--seed", type=int, help="decides the order of each day; printed at the start")
    parser.add_argument("--rate", type=float, default=16.0, help="changes a second: three for each order")
    given = parser.parse_args()
    seed = random.randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    report = run(
        seed=seed,
        days=given.days,
        day_seconds=given.day_minutes * 60,
        rate=given.rate,
        say=lambda line: print(line, flush=True),
    )
    kept = PROJECT / "var" / "soak.json"
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps(dataclasses.asdict(report), default=str))
    print(
        f"\n{text(report)}\n\neverything that was measured: {kept}\n{'passed' if report.passed else 'FAILED'}"
    )
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
