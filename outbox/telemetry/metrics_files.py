"""The counters and histograms of several processes together, through files in PROMETHEUS_MULTIPROC_DIR.

prometheus-client keeps a file for each process and kind of metric. The web's worker processes come and go.
The library would keep the files of all of them for ever; deleting one would make the sums fall, which
Prometheus takes for a restart. So the numbers of a process that has ended are added to one file, under a
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

#: None where each process keeps its numbers to itself.
DIRECTORY: Path | None = None
if _given := os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
    DIRECTORY = Path(_given)
    DIRECTORY.mkdir(parents=True, exist_ok=True)  # prometheus-client does not

#: The library's own classes have no types.
_numbers: Any = MmapedDict
_collector: Any = MultiProcessCollector
ENDED = "ended"  # in the place of a process id


def collect(directory: Path) -> Iterable[Metric]:
    """Return the sums over all processes, those that have ended among them."""
    with (directory / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _add_up_ended(directory)
        return list(_collector.merge([str(file) for file in directory.glob("*.db")]))


def _add_up_ended(directory: Path) -> None:
    for file in directory.glob("*.db"):
        kind, _, process = file.stem.rpartition("_")
        if process == ENDED or Path(f"/proc/{process}").exists():
            continue
        sums = _numbers(directory / f"{kind}_{ENDED}.db")
        for key, value, *_ in _numbers.read_all_values_from_file(str(file)):
            sums.write_value(key, sums.read_value(key)[0] + value, 0.0)
        sums.close()
        file.unlink()
