"""The ports on which the processes of a local run show their metrics, and a list of them for Prometheus."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from config.local.machine import HOST, free_port, is_free

#: The web's worker processes count together, in files of this directory of var/.
WEB_FILES = Path("run") / "metrics"
#: For `file_sd_configs` of Prometheus.
TARGETS = Path("run") / "metrics_targets.json"


def ports(*, names: Sequence[str], first: int) -> dict[str, int]:
    """Choose a port for each process: `first` and those after it, or any free one where one is taken."""
    wished = {name: first + number for number, name in enumerate(names)}
    return {
        name: port if port < 65536 and is_free(port=port) else free_port() for name, port in wished.items()
    }


def environment(*, name: str, port: int, var: Path) -> dict[str, str]:
    """Return what a process needs to show its metrics."""
    shared = {"PROMETHEUS_MULTIPROC_DIR": str(var / WEB_FILES)} if name == "web" else {}
    return {"METRICS_HOST": HOST, "METRICS_PORT": str(port)} | shared


def prepare(*, var: Path, ports: Mapping[str, int]) -> None:
    """Forget the counts of an earlier run, and write the list for Prometheus."""
    (var / WEB_FILES).mkdir(parents=True, exist_ok=True)
    for file in (var / WEB_FILES).glob("*.db"):
        file.unlink()
    targets = [{"targets": [f"{HOST}:{port}"], "labels": {"role": name}} for name, port in ports.items()]
    (var / TARGETS).write_text(json.dumps(targets, indent=1) + "\n")
