"""A real OpenTelemetry collector between the processes of a test and the test's receiver.

Use `otelcol` on the PATH if it exists. Else Go builds one with the components of docker/otelcol.yaml into
var/, which takes minutes the first time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Self

import pytest

from local.machine import PROJECT, free_port, guarded
from tests.kit.needs import reason
from tests.kit.waiting import PATIENCE, until

BUILDER = "go.opentelemetry.io/collector/cmd/builder"
VERSION, STABLE = "v0.150.0", "v1.56.0"
CONFIG = PROJECT / "docker" / "otelcol.yaml"
#: The components of CONFIG.
MANIFEST = f"""
dist: {{name: otelcol, module: example.com/otelcol, output_path: source, version: 0.0.0}}
receivers:
  - gomod: go.opentelemetry.io/collector/receiver/otlpreceiver {VERSION}
exporters:
  - gomod: go.opentelemetry.io/collector/exporter/otlphttpexporter {VERSION}
providers:
  - gomod: go.opentelemetry.io/collector/confmap/provider/envprovider {STABLE}
  - gomod: go.opentelemetry.io/collector/confmap/provider/fileprovider {STABLE}
"""


def binary() -> Path:
    """Return the collector's program. Skip the test if neither it nor Go is installed."""
    if path := shutil.which("otelcol"):
        return Path(path)
    if shutil.which("go") is None:
        pytest.skip(reason("otelcol"))
    folder = PROJECT / "var" / f"otelcol-{VERSION}"
    built = folder / "source" / "otelcol"
    if not built.exists():
        folder.mkdir(parents=True, exist_ok=True)
        manifest = folder / "manifest.yaml"
        manifest.write_text(MANIFEST)
        here = os.environ | {"GOBIN": str(folder)}
        for command in (
            ["go", "install", f"{BUILDER}@{VERSION}"],
            [str(folder / "builder"), "--config", str(manifest)],
        ):
            done = subprocess.run(command, env=here, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                pytest.skip(reason("otelcol", f"Go cannot build it here: {done.stderr.strip()[-300:]}"))
    return built


class Collector:
    """Runs docker/otelcol.yaml within a `with` block. It forwards spans to the OTLP receiver at `to`."""

    def __init__(self, *, program: Path, folder: Path, to: str) -> None:
        port = free_port()
        self._program, self._log = program, folder / "otelcol.log"
        self.url = f"http://127.0.0.1:{port}"
        self._environment = os.environ | {"LISTEN": f"127.0.0.1:{port}", "TRACES_TO": to}

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            command = guarded([str(self._program), "--config", str(CONFIG)])
            self._process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)
        try:
            until(self._is_ready, "the collector is ready", details=lambda: self._log.read_text()[-2000:])
        except BaseException:
            self._process.kill()
            raise
        return self

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        return "Everything is ready" in self._log.read_text()

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(PATIENCE)
