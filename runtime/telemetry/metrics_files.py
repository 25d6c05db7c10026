"""Sum the counters and histograms of several processes, through files in PROMETHEUS_MULTIPROC_DIR.

prometheus-client writes a file for each process and kind of metric. The web's worker processes start and
exit, and the library would keep all their files for ever. If one were deleted, the sums would fall, and
Prometheus would take that for a restart. This module adds the numbers of dead processes to one file, under a
lock.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector

#: None if each process has only its own numbers.
DIRECTORY: Path | None = None
if _given := os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
    DIRECTORY = Path(_given)
    DIRECTORY.mkdir(parents=True, exist_ok=True)  # prometheus-client does not make it

#: The library's classes have no types.
_numbers: Any = MmapedDict
_collector: Any = MultiProcessCollector
ENDED = "ended"  # in the place of a process id


def collect(directory: Path) -> Iterable[Metric]:
    """Return the sums over all processes, also dead ones."""
    with (directory / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _add_up_ended(directory)
        # A process creates its file empty. The library cannot read an empty one.
        return list(_collector.merge([str(file) for file in directory.glob("*.db") if file.stat().st_size]))


def _add_up_ended(directory: Path) -> None:
    for file in directory.glob("*.db"):
        kind, _, process = file.stem.rpartition("_")
        if process == ENDED or Path(f"/proc/{process}").exists():
            continue
        if file.stat().st_size:  # else the process was killed before it wrote anything
            sums = _numbers(directory / f"{kind}_{ENDED}.db")
            for key, value, *_ in _numbers.read_all_values_from_file(str(file)):
                sums.write_value(key, sums.read_value(key)[0] + value, 0.0)
            sums.close()
        file.unlink()
