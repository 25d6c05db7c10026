"""`make chaos` (ARGS="--minutes 30 --seed 7 --no-webhooks"): one run; 1 when the auditor found anything."""

from __future__ import annotations

import argparse
import random
import sys

from tests import alone


def main() -> int:
    alone.prepare()
    from tests.chaos import faults
    from tests.chaos.run import run

    parser = argparse.ArgumentParser(prog="make chaos", description="Try to break a whole orderpost.")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, help="replays the faults of a run; printed at its start")
    parser.add_argument("--rate", type=float, default=12.0, help="changes a second")
    parser.add_argument(
        "--providers", help="separated by commas; the SMTP server of `smtp` listens all the time"
    )
    parser.add_argument("--no-webhooks", action="store_true", help="the provider tells nothing of its mails")
    parser.add_argument("--only", help="these faults once each, separated by commas")
    given = parser.parse_args()
    seed = random.randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    report = run(
        seed=seed,
        seconds=given.minutes * 60,
        providers=given.providers.split(",") if given.providers else None,
        webhooks=not given.no_webhooks,
        rate=given.rate,
        faults=[getattr(faults, name) for name in given.only.split(",")] if given.only else None,
        say=lambda line: print(line, flush=True),
    )
    print(f"\n{report.text()}\n{'passed' if report.passed else 'FAILED'}")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
