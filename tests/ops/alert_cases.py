"""The cases of the tests of the alert rules: the table alert_cases.yml, and one for each watched metric.

Each case names an `alert`, and its `labels` if it has some. `series`: each with its values, one for each
`interval`, in promtool's notation. `silent`: the times at which the alert must not fire. `fires`: the times
at which it must, with the description that it then has. `story` tells cases of one alert apart.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

#: Every metric that `MetricMissing` looks for.
WATCHED = (
    "orderpost_database_up",
    "orderpost_broker_up",
    "orderpost_email_attempts_total",
    "orderpost_unfinished",
    "orderpost_oldest_unfinished_seconds",
    "orderpost_oldest_processing_seconds",
    "orderpost_relay_lag_seconds",
    "orderpost_relay_blocked_keys",
    "orderpost_event_dead_letters",
    "orderpost_stuck_orders",
    "orderpost_partitions_ahead_seconds",
    "orderpost_archive_overdue_seconds",
    "orderpost_database_connections_left",
    "orderpost_breaker_state",
    "orderpost_breaker_forced",
    "orderpost_consumer_lag_seconds",
)


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """One alert, and the series that make it fire and resolve it. Each key of `fires` is one time."""

    alert: str
    series: Mapping[str, str]
    silent: str
    fires: Mapping[str, str] = dataclasses.field(default_factory=dict)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    story: str = ""
    interval: str = "1m"
    evaluation: str = "15s"

    def __str__(self) -> str:
        return f"{self.alert} {self.story}".strip()

    @property
    def ends(self) -> bool:
        """Whether the last check expects silence."""
        return _minutes(self.silent.split()[-1]) > max(map(_minutes, self.fires), default=0)


def _minutes(duration: str) -> float:
    parts = re.findall(r"(\d+)([dhms])", duration)
    return sum(int(number) * {"d": 1440, "h": 60, "m": 1, "s": 1 / 60}[unit] for number, unit in parts)


def _read(row: Mapping[str, Any]) -> Case:
    fires = {at: text for times, text in row.get("fires", {}).items() for at in times.split()}
    return Case(**{**row, "fires": fires})


def _shown(**changed: str) -> dict[str, str]:
    """Show all watched metrics. Those in `changed` have other values, or are missing if these are empty."""
    values = dict.fromkeys(WATCHED, "1x60") | changed
    return {name: value for name, value in values.items() if value}


def _missing(name: str) -> Case:
    return Case(
        "MetricMissing",
        _shown(**{name: "1x4 stale _x10 1x5"}),
        labels={"metric": name},
        story=name,
        evaluation="1m",
        silent="5m 9m 17m",
        fires={"10m": f"No process has exported {name} for 5 minutes, so alerts that need it cannot fire."},
    )


TABLE = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text(encoding="utf-8"))
CASES = [
    *map(_read, TABLE),
    *map(_missing, WATCHED),
    Case(
        "MetricMissing",
        _shown(orderpost_unfinished="", orderpost_event_dead_letters="", orderpost_database_up="0x60"),
        story="but not what a database that is down would show",
        silent="10m 30m",
    ),
]
