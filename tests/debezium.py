"""Kafka Connect with Debezium's PostgreSQL connector, as one worker; config.local.jars fetches both."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import requests

from config.local import jars
from config.local.machine import HOST, PROJECT, free_port, guarded

READY_SECONDS = 120.0
CONNECTOR = PROJECT / "docker" / "debezium" / "orderpost.json"
#: As docs/triggers.md asks for it; small, and quick to write offsets.
WORKER = {
    "group.id": "orderpost-connect",
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "config.storage.topic": "connect-configs",
    "offset.storage.topic": "connect-offsets",
    "status.storage.topic": "connect-status",
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "status.storage.replication.factor": "1",
    "offset.storage.partitions": "1",
    "status.storage.partitions": "1",
    "offset.flush.interval.ms": "2000",
    "scheduled.rebalance.max.delay.ms": "0",
    "config.providers": "env",
    "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
}


class Connect:
    """One worker. `environment` is what the connector's placeholders name."""

    def __init__(self, *, bootstrap: str, folder: Path, environment: dict[str, str]) -> None:
        self.port = free_port()
        self._bootstrap, self._folder, self._environment = bootstrap, folder, environment
        self._jars = jars.fetch(jars.CONNECT, say=print)
        self._plugins = folder / "plugins"
        self._plugins.mkdir()
        (self._plugins / "debezium").symlink_to(jars.fetch(jars.DEBEZIUM, say=print)[0].parent)
        self._process: subprocess.Popen[bytes] | None = None
        self._session = requests.Session()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return (self._folder / "connect.log").read_text(errors="replace")

    def start(self) -> None:
        """Start the worker and return when it answers."""
        properties = WORKER | {
            "bootstrap.servers": self._bootstrap,
            "listeners": f"http://{HOST}:{self.port}",
            "plugin.path": str(self._plugins),
        }
        file = self._folder / "connect.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        command = jars.command(jars=self._jars, main=main, arguments=[file])
        with (self._folder / "connect.log").open("ab") as log:
            self._process = subprocess.Popen(
                guarded(command, parent=os.getpid(), death_signal=signal.SIGKILL),
                env=os.environ | self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.until(lambda: self._call("GET", "/connectors").ok, "Kafka Connect answers")

    def stop(self) -> None:
        """SIGTERM: the worker commits its offsets."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def put(self, **changes: str) -> None:
        """Make the connector, or change it, as docs/triggers.md says; wait until it follows PostgreSQL."""
        config = json.loads(CONNECTOR.read_text()) | changes
        self.until(lambda: self._call("PUT", "/connectors/orderpost/config", json=config).ok, "it is taken")
        self.until(self.runs, "the connector runs")

    def runs(self) -> bool:
        """Return whether connector and task run."""
        answer = self._call("GET", "/connectors/orderpost/status")
        if not answer.ok:
            return False
        status: dict[str, Any] = answer.json()
        states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
        return len(states) > 1 and set(states) == {"RUNNING"}

    def call(self, method: str, path: str, **options: Any) -> Any:
        answer = self._call(method, path, **options)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def _call(self, method: str, path: str, **options: Any) -> requests.Response:
        try:
            return self._session.request(method, f"http://{HOST}:{self.port}{path}", timeout=30, **options)
        except requests.ConnectionError:
            answer = requests.Response()
            answer.status_code = 503
            return answer

    def until(self, condition: Any, what: str, seconds: float = READY_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            ended = self._process is not None and self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"waited in vain until {what}\n{self.log[-4000:]}")
            time.sleep(0.2)
