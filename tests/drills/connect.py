"""Kafka Connect with Debezium's connector, which local.kafka.jars fetches."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from local.kafka import jars
from local.machine import HOST, PROJECT, LocalRunFailed, tail
from local.servers import Server

CONNECTOR = PROJECT / "docker" / "debezium" / "orderpost.json"
READY_SECONDS = 120.0
_STORES = ("config", "offset", "status")
#: A worker as docs/guides/triggers.md requires it, with few partitions and a quick takeover.
WORKER = {
    "group.id": "orderpost-connect",
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    **{f"{store}.storage.topic": f"connect-{store}" for store in _STORES},
    **{f"{store}.storage.replication.factor": "1" for store in _STORES},
    "offset.storage.partitions": "1",
    "status.storage.partitions": "1",
    "offset.flush.interval.ms": "2000",
    "scheduled.rebalance.max.delay.ms": "0",
    "config.providers": "env",
    "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
}


class EmbeddedConnect(Server):
    """One distributed worker, with its topics at the Kafka of `bootstrap`.

    `database` has the values of the connector's placeholders: HOST, PORT, NAME, USER, PASSWORD.
    """

    name = "Kafka Connect"
    stop_signal = signal.SIGTERM

    def __init__(self, *, bootstrap: str, folder: Path, port: int, database: Mapping[str, str]) -> None:
        super().__init__(port=port)
        self._bootstrap, self._folder = bootstrap, folder
        self._database = {f"CDC_DATABASE_{name}": value for name, value in database.items()}
        self._jars: Sequence[Path] = ()

    @property
    def url(self) -> str:
        """The address of its REST API."""
        return f"http://{HOST}:{self.port}"

    @property
    def _log_file(self) -> Path:
        return self._folder / "connect.log"

    def prepare(self) -> None:
        """Fetch Connect and Debezium, and write the worker's configuration."""
        self._jars = jars.fetch(jars.CONNECT)
        plugins = self._folder / "plugins"
        plugins.mkdir(parents=True, exist_ok=True)
        if not (plugins / "debezium").exists():
            (plugins / "debezium").symlink_to(jars.fetch(jars.DEBEZIUM)[0].parent)
        whole = WORKER | {
            "bootstrap.servers": self._bootstrap,
            "listeners": self.url,
            "plugin.path": str(plugins),
        }
        self._configuration.write_text("".join(f"{name}={value}\n" for name, value in whole.items()))

    @property
    def _configuration(self) -> Path:
        return self._folder / "connect.properties"

    def argv(self) -> list[str]:
        main = "org.apache.kafka.connect.cli.ConnectDistributed"
        return jars.command(jars=self._jars, main=main, arguments=[self._configuration])

    def environment(self) -> dict[str, str]:
        return super().environment() | self._database

    def is_ready(self) -> bool:
        return self._ask("GET", "/connectors")[0] == 200

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self) -> None:
        """Start the worker and wait until it answers."""
        self.start(log=self._log_file, timeout_seconds=READY_SECONDS)

    def put(self, **changes: str) -> None:
        """Create or change the connector of docs/guides/triggers.md. Wait until it follows PostgreSQL."""
        config = json.loads(CONNECTOR.read_text()) | changes
        self._until(
            lambda: self._ask("PUT", "/connectors/orderpost/config", config)[0] in (200, 201), "was accepted"
        )
        self._until(self.is_following, "follows PostgreSQL")

    def is_following(self) -> bool:
        """Return whether the connector and its tasks run."""
        code, status = self._ask("GET", "/connectors/orderpost/status")
        states = [part["state"] for part in (status["connector"], *status["tasks"])] if code == 200 else []
        return len(states) > 1 and set(states) == {"RUNNING"}

    def call(self, method: str, path: str) -> None:
        """Send a request to the REST API. Raise LocalRunFailed if it fails."""
        code, answer = self._ask(method, path)
        if code >= 300:
            raise LocalRunFailed(f"Kafka Connect refused {method} {path}: {code} {answer}")

    def _ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        """Return the status and the JSON of an answer, or 0 and None without an answer."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=30)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
            return response.status, json.loads(content) if content else None
        except (OSError, http.client.HTTPException, ValueError):
            return 0, None
        finally:
            connection.close()

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not condition():
            if self.has_ended() or time.monotonic() > deadline:
                log = tail(log=self._log_file, lines=40)
                raise LocalRunFailed(f"Kafka Connect failed before the connector {what}:\n{log}")
            time.sleep(0.2)
