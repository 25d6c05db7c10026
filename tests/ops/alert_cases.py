"""The cases of the tests of the alert rules: alert_cases.yml, and some for each condition and metric.

Each case names an `alert`, and its `labels` if it has some. `series`: each with its values, one for each
`interval`, in promtool's notation. `silent`: the times at which the alert must not fire. `fires`: the times
at which it must, with the description that it then has. `story` tells cases of one alert apart.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.kit.words import Pause, conditions

#: The first condition of each code that has an alert.
ALERTS = {condition.code: condition for condition in reversed(conditions.declared()) if condition.alert}


def condition_series(code: str, **labels: str) -> str:
    """Return the series of a condition in PromQL."""
    pairs = [f'{name}="{value}"' for name, value in {"code": code, **labels}.items()]
    return f"orderpost_condition{{{', '.join(pairs)}}}"


#: Every metric that `MetricMissing` looks for.
WATCHED = (
    "orderpost_database_up",
    "orderpost_broker_up",
    "orderpost_email_attempts_total",
    "orderpost_unfinished",
    "orderpost_oldest_unfinished_seconds",
    *(condition_series(code) for code, condition in ALERTS.items() if not condition.source.is_optional),
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
    metric, _, code = name.rstrip('"}').partition('{code="')
    shown, labels = (f"{metric} {code}", {"code": code}) if code else (metric, {})
    return Case(
        "MetricMissing",
        _shown(**{name: "1x4 stale _x10 1x5"}),
        labels={"metric": shown, **labels},
        story=shown,
        evaluation="1m",
        silent="5m 9m 17m",
        fires={"10m": f"No process has exported {shown} for 5 minutes, so alerts that need it cannot fire."},
    )


def _duration(seconds: float) -> str:
    return f"{seconds:.0f}s"


def _condition(code: str) -> Iterator[Case]:
    """Yield a case in which the condition begins in the second minute, and one of its pause."""
    condition = ALERTS[code]
    alert = condition.alert
    assert alert is not None
    wait = 60 * _minutes(alert.wait)
    length = int(wait // 60) + 10
    labels = {"code": code, "subject": "it"}
    number = " Waiting e-mails: 7." if "orderpost_unfinished" in alert.shows else ""
    text = f"To do: {condition.do}.{number}"
    waiting = {'orderpost_unfinished{table="email_notifications", status="pending"}': "7x200"}
    series = waiting | {condition_series(code, subject="other", instance="a"): "0x200"}
    held = condition_series(code, subject="it", instance="b")
    paused = {
        f'orderpost_paused{{part="{part}"}}': "1x200" for part in Pause.Part if part != condition.paused_by
    }
    yield Case(
        code,
        series | paused | {held: f"0x1 1x{length} 0x5"},
        silent=f"1m {_duration(120 + wait - 15)} {length + 4}m",
        fires={_duration(120 + wait): text, f"{length + 2}m": text},
        labels=labels,
    )
    if part := condition.paused_by:
        # The series is 1 until the tenth minute, so it is in a range of 15 minutes until the 25th.
        yield Case(
            code,
            series | {held: "1x60 0x5", f'orderpost_paused{{part="{part}"}}': "1x10 0x60"},
            story="of what a pause holds back only 15 minutes after its end",
            silent=f"5m 25m {_duration(1500 + wait)} 63m",
            fires={_duration(1530 + wait): text},
            labels=labels,
        )


TABLE = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text(encoding="utf-8"))
CASES = [
    *map(_read, TABLE),
    *(case for code in ALERTS for case in _condition(code)),
    *map(_missing, WATCHED),
    Case(
        "MetricMissing",
        _shown(
            **{
                "orderpost_unfinished": "",
                condition_series("PollMissing"): "",
                "orderpost_database_up": "0x60",
            }
        ),
        story="but not what a database that is down would show",
        silent="10m 30m",
    ),
]
