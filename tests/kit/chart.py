"""Read the values of docker/helm, and the settings that its chart can have."""

from __future__ import annotations

import re
from typing import Any

import yaml

from local.machine import PROJECT

CHART = PROJECT / "docker" / "helm" / "orderpost"

Object = dict[str, Any]


def chart_values() -> Object:
    """Return the chart's own values."""
    values: Object = yaml.safe_load((CHART / "values.yaml").read_text())
    return values


def documented_settings() -> set[str]:
    """Return every name of docs/reference/configuration.md's tables."""
    page = (PROJECT / "docs" / "reference" / "configuration.md").read_text()
    rows = re.findall(r"^\| (`[^|]*) \|", page, flags=re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([A-Z][A-Z0-9_]+)`", row)}
