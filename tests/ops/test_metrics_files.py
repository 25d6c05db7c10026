"""The counts of several web processes are one, also after some of them have ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from prometheus_client.mmap_dict import MmapedDict, mmap_key

from outbox.telemetry import metrics_files

COUNTS = """
import sys
from prometheus_client import CollectorRegistry, Counter, Histogram
registry = CollectorRegistry()
Counter("shop_shipped", "Shipped", ["carrier"], registry=registry).labels("post").inc(int(sys.argv[1]))
Histogram("shop_packing_seconds", "Packing", buckets=(1, 2), registry=registry).observe(1.5)
"""


def count(directory: Path, number: int) -> None:
    """Count in a process that ends."""
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(directory)}
    subprocess.run([sys.executable, "-c", COUNTS, str(number)], env=environment, check=True)


def found(directory: Path) -> dict[str, float]:
    """Return the collected numbers by name and labels."""
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in metrics_files.collect(directory)
        for sample in family.samples
    }


def test_the_counts_of_ended_processes_stay_and_their_files_do_not(tmp_path: Path) -> None:
    count(tmp_path, 3)
    count(tmp_path, 4)
    assert len(list(tmp_path.glob("*.db"))) == 4
    for _ in range(2):  # a second look adds nothing
        numbers = found(tmp_path)
        assert numbers["shop_shipped_total[('carrier', 'post')]"] == 7
        assert numbers["shop_packing_seconds_count[]"] == 2
        assert numbers["shop_packing_seconds_bucket[('le', '1.0')]"] == 0
        assert numbers["shop_packing_seconds_bucket[('le', '2.0')]"] == 2
    assert sorted(file.name for file in tmp_path.glob("*.db")) == ["counter_ended.db", "histogram_ended.db"]
    count(tmp_path, 5)
    assert found(tmp_path)["shop_shipped_total[('carrier', 'post')]"] == 12


def test_a_process_that_goes_on_keeps_its_file(tmp_path: Path) -> None:
    mine: Any = MmapedDict(str(tmp_path / f"counter_{os.getpid()}.db"))
    key = mmap_key("shop_shipped", "shop_shipped_total", ["carrier"], ["post"], "Shipped")
    mine.write_value(key, 2.0, 0.0)
    count(tmp_path, 3)
    assert found(tmp_path)["shop_shipped_total[('carrier', 'post')]"] == 5
    mine.write_value(key, 10.0, 0.0)
    assert found(tmp_path)["shop_shipped_total[('carrier', 'post')]"] == 13
    mine.close()
