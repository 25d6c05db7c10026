"""A real Prometheus and Alertmanager for a `Shop`, with the shipped files and every duration divided by 60.

`with Monitoring(shop, roles=[...]) as monitoring:` starts both, and a receiver of webhooks in place of the
pager. Prometheus scrapes the processes of those kinds, each at its own port.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import requests
import yaml

from local.machine import HOST, PROJECT, free_port, guarded
from tests.kit.http import serve
from tests.kit.needs import needs
from tests.kit.shop import Shop
from tests.kit.waiting import PATIENCE

FACTOR = 60
DAY = 86_400
RULES = PROJECT / "docker" / "prometheus" / "alerts.yml"
PROMETHEUS = PROJECT / "docker" / "prometheus" / "prometheus.yml"
ALERTMANAGER = PROJECT / "docker" / "alertmanager" / "alertmanager.yml"
UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

needs_monitoring = needs(
    "prometheus-alertmanager", shutil.which("prometheus") and shutil.which("prometheus-alertmanager")
)


def faster(duration: str) -> str:
    """Divide a duration such as `5m` by `FACTOR`."""
    match = re.fullmatch(r"(\d+)(ms|s|m|h|d)", duration)
    assert match is not None, duration
    number, unit = match.groups()
    return f"{max(1, int(number) * UNITS[unit] // FACTOR)}ms"


def faster_query(query: str) -> str:
    """Divide the ranges of a query, and the limits of times in seconds, by `FACTOR`.

    Keep limits of a day or more, because days have their real length. Keep the age of loops, too.
    """
    query = re.sub(r"\[(\d+[a-z]+)(:?)\]", lambda match: f"[{faster(match[1])}{match[2]}]", query)
    return re.sub(
        r"((?<!loop_age)_seconds(?:_bucket)?\b[^<>\n]*?[<>]=? )(\d+)(?![\d.])",
        lambda match: f"{match[1]}{int(match[2]) / (FACTOR if int(match[2]) < DAY else 1):g}",
        query,
    )


def faster_rules(text: str) -> str:
    """Return the shipped rules with every duration divided by `FACTOR`."""
    document = yaml.safe_load(text)
    for group in document["groups"]:
        group.pop("interval", None)
        for rule in group["rules"]:
            rule["expr"] = faster_query(rule["expr"])
            for key in ("for", "keep_firing_for"):
                if key in rule:
                    rule[key] = faster(rule[key])
    return yaml.safe_dump(document, sort_keys=False)


class Monitoring:
    """Both servers with the shipped configuration. `ports` has the metrics port of each role's process."""

    def __init__(self, shop: Shop, *, ports: Mapping[str, int]) -> None:
        self.shop, self.ports = shop, ports
        self.port, self.alertmanager_port = free_port(), free_port()
        #: Alertmanager's messages with their times, as a pager's service receives them.
        self.messages: list[tuple[float, dict[str, Any]]] = []
        self._stack = contextlib.ExitStack()
        self._running: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def _receive(self, path: str, _: Any, body: Any) -> tuple[int, Any, dict[str, str]]:
        for alert in body["alerts"]:
            self.messages.append((time.monotonic(), {**alert, "receiver": path.strip("/")}))
        return 200, None, {}

    def __enter__(self) -> Monitoring:
        try:
            self._receiver = self._stack.enter_context(serve(self._receive))
            self._start(
                "prometheus-alertmanager",
                f"--config.file={self._write('alertmanager.yml', self._alertmanager())}",
                f"--storage.path={self.shop.folder / 'alertmanager'}",
                f"--web.listen-address={HOST}:{self.alertmanager_port}",
                "--cluster.listen-address=",
            )
            self._start(
                "prometheus",
                f"--config.file={self._write('prometheus.yml', self._prometheus())}",
                f"--storage.tsdb.path={self.shop.folder / 'prometheus'}",
                f"--web.listen-address={HOST}:{self.port}",
                "--rules.alert.resend-delay=1s",
                "--rules.alert.for-grace-period=0s",
                "--query.lookback-delta=5s",
            )
            self.shop.until(self._is_ready, "Prometheus and Alertmanager are up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running:
            process.terminate()
        for process in self._running:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(PATIENCE)
        self._stack.close()

    def _start(self, program: str, *arguments: str) -> None:
        with (self.shop.folder / f"{program}.log").open("ab") as log:
            self._running.append(
                subprocess.Popen(
                    guarded([program, *arguments]),
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "GOMAXPROCS": "1"},
                    start_new_session=True,
                )
            )

    def _write(self, name: str, document: Mapping[str, Any]) -> Path:
        path = self.shop.folder / name
        path.write_text(yaml.safe_dump(dict(document), sort_keys=False))
        return path

    def _prometheus(self) -> dict[str, Any]:
        """Return the shipped configuration with the test's intervals, rules and addresses."""
        document: dict[str, Any] = yaml.safe_load(PROMETHEUS.read_text())
        rules = self.shop.folder / "rules.yml"
        rules.write_text(faster_rules(RULES.read_text()))
        document["global"] |= {
            "scrape_interval": "1s",
            "scrape_timeout": "1s",
            "evaluation_interval": faster(document["global"]["evaluation_interval"]),
        }
        document["rule_files"] = [str(rules)]
        document["alerting"]["alertmanagers"] = [
            {"static_configs": [{"targets": [f"{HOST}:{self.alertmanager_port}"]}]}
        ]
        (job,) = document["scrape_configs"]
        job["static_configs"] = [
            {"targets": [f"{HOST}:{port}"], "labels": {"role": role}} for role, port in self.ports.items()
        ]
        return document

    def _alertmanager(self) -> dict[str, Any]:
        """Return the shipped configuration with the test's intervals and addresses."""
        document: dict[str, Any] = yaml.safe_load(ALERTMANAGER.read_text())

        def hurry(route: dict[str, Any]) -> None:
            for key in ("group_wait", "group_interval", "repeat_interval"):
                if key in route:
                    route[key] = faster(route[key])
            for child in route.get("routes", []):
                hurry(child)

        hurry(document["route"])
        document["receivers"] = [
            {
                "name": receiver["name"],
                "webhook_configs": [{"url": f"{self._receiver}/{receiver['name']}", "send_resolved": True}],
            }
            for receiver in document["receivers"]
        ]
        return document

    def _is_ready(self) -> bool:
        try:
            return all(
                requests.get(f"http://{HOST}:{port}/-/ready", timeout=2).ok
                for port in (self.port, self.alertmanager_port)
            )
        except requests.RequestException:
            return False

    def ask(self, query: str) -> list[dict[str, Any]]:
        """Return the present samples of a query."""
        answer = requests.get(f"{self.url}/api/v1/query", params={"query": query}, timeout=PATIENCE).json()
        assert answer["status"] == "success", answer
        series: list[dict[str, Any]] = answer["data"]["result"]
        return series

    def heard(self, name: str, status: str, *, since: float = 0.0) -> dict[str, Any] | None:
        """Return a message about an alert that the receiver got after `since`, or None."""
        for at, alert in self.messages:
            if at >= since and alert["status"] == status and alert["labels"]["alertname"] == name:
                return alert
        return None
