"""Run the suite in fresh clones of this repository, one after another, and compare the runs.

    python -m tests.kit.clones [--count 5] [--target test] [ARGUMENT ...]

Each clone gets its own .venv; `make setup` is not part of the times. Arguments go to `make`, such as
`TESTS=tests/rules/orders`. The clones have the last commit, not uncommitted changes. Logs are kept in
var/clones. It exits with 1 if any run failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from local.machine import PROJECT

LOGS = PROJECT / "var" / "clones"
SUMMARY = re.compile(r"^=* ?(\d+ (?:passed|failed|skipped|error).*) in [\d.]+s", re.MULTILINE)
FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+::.*?)(?: - .*)?$", re.MULTILINE)
SEED = re.compile(r"TESTS_SEED=(\d+)")


@dataclasses.dataclass(frozen=True)
class Run:
    """One run: its exit status, its times in seconds and its output."""

    status: int
    wall: float
    cpu: float
    output: str

    @property
    def counts(self) -> str:
        summaries = SUMMARY.findall(self.output)
        return summaries[-1] if summaries else "no summary"

    @property
    def failures(self) -> list[str]:
        return FAILURE.findall(self.output)

    @property
    def seed(self) -> str:
        seeds = SEED.findall(self.output)
        return seeds[-1] if seeds else "?"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.kit.clones",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--target", default="test", help="the target of make: test, drills or coverage")
    parser.add_argument("rest", nargs="*", help="for make, such as TESTS=tests/rules/orders")
    options = parser.parse_args(arguments)
    if said := changes(PROJECT):
        print(f"Not in the clones, because it is not committed:\n{said}", file=sys.stderr)
    runs = []
    for number in range(1, options.count + 1):
        runs.append(run_in_clone(number, [options.target, *options.rest]))
        print(line(number, runs[-1]), flush=True)
    print(report(runs))
    return int(any(run.status for run in runs))


def changes(project: Path) -> str:
    command = ["git", "status", "--porcelain"]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=True).stdout


def run_in_clone(number: int, arguments: Sequence[str]) -> Run:
    LOGS.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="orderpost-clone-"))
    log = LOGS / f"{number}.log"
    try:
        clone = folder / "orderpost"
        subprocess.run(["git", "clone", "--quiet", PROJECT, clone], check=True)
        with log.open("w") as output:
            subprocess.run(["make", "setup"], cwd=clone, stdout=output, stderr=output, check=True)
            output.flush()
            before, began = cpu_seconds(), time.monotonic()
            done = subprocess.run(["make", *arguments], cwd=clone, stdout=output, stderr=output)
        wall, cpu = time.monotonic() - began, cpu_seconds() - before
        return Run(done.returncode, wall, cpu, log.read_text(errors="replace"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cpu_seconds() -> float:
    """Return the CPU time of all exited children and their children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def line(number: int, run: Run) -> str:
    verdict = "green" if run.status == 0 else f"FAILED ({run.status})"
    return f"{number}: {verdict}, {run.wall:.0f} s, {run.cpu:.0f} s of CPU, seed {run.seed}: {run.counts}"


def report(runs: Sequence[Run]) -> str:
    """Return the median of the times, and in how many runs each test failed."""
    wall, cpu = statistics.median(run.wall for run in runs), statistics.median(run.cpu for run in runs)
    green = sum(run.status == 0 for run in runs)
    lines = [f"{green} of {len(runs)} green; median {wall:.0f} s, {cpu:.0f} s of CPU. Logs: {LOGS}"]
    failed = Counter(name for run in runs for name in run.failures)
    lines += [f"  failed in {count}: {name}" for name, count in failed.most_common()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
