"""`make chaos` (ARGS="--minutes 30 --seed 7 --no-webhooks"): one run. Exit with 1 after any finding."""

from __future__ import annotations

import argparse
import random
import sys

from tests.chaos import alone


def main() -> int:
    alone.prepare()
    from tests.chaos import faults
    from tests.chaos.run import run

    parser = argparse.ArgumentParser(prog="make chaos", description="Try to break a whole orderpost.")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long things break (default 5)")
    parser.add_argument(
        "--seed", type=int, help="repeat the order of a run's faults; each run prints its seed first"
    )
    parser.add_argument("--rate", type=float, default=12.0, help="changes a second (default 12)")
    parser.add_argument(
        "--providers",
        help="EMAIL_PROVIDERS, such as resend,smtp; their SMTP server listens all the time. Default:"
        " sendgrid,smtp, whose SMTP server listens only while it is slow",
    )
    parser.add_argument(
        "--no-webhooks", action="store_true", help="no provider reports what became of an e-mail"
    )
    parser.add_argument(
        "--only", help="only these faults, once each, in this order, such as kill,tls_garbage"
    )
    options = parser.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    report = run(
        seed=seed,
        seconds=options.minutes * 60,
        providers=options.providers.split(",") if options.providers else None,
        webhooks=not options.no_webhooks,
        rate=options.rate,
        faults=[getattr(faults, name) for name in options.only.split(",")] if options.only else None,
        say=lambda line: print(line, flush=True),
    )
    print(f"\n{report.text()}\n{'passed' if report.passed else 'FAILED'}")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
