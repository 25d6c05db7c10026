"""The shipped alert rules and dashboards as their readers load them."""

from __future__ import annotations

import functools
import json
import shutil
from typing import Any

import yaml

from local.machine import PROJECT
from tests.kit.needs import needs

RULES = PROJECT / "docker" / "prometheus" / "alerts.yml"
DASHBOARDS = {
    path.stem: json.loads(path.read_text())
    for path in sorted((PROJECT / "docker" / "grafana" / "dashboards").glob("*.json"))
}
needs_promtool = needs("prometheus", shutil.which("promtool"))


@functools.cache
def rules() -> list[dict[str, Any]]:
    """Return every rule of the shipped file."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    """Return the alerting rules by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def queries(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    """Return each panel's title with each of its queries, as Grafana would send them."""
    return [
        (panel["title"], target["expr"].replace("$__rate_interval", "5m"))
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]
