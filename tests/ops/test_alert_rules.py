"""Each alert with its real durations: it fires when it must, not before, and ends."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import yaml

from local.machine import PROJECT
from tests.kit.needs import needs
from tests.ops.alert_cases import CASES, Case

RULES = PROJECT / "docker" / "prometheus" / "alerts.yml"
DOCS = "https://docs.example.com"
#: Shown together with one that is watched, or by each process that `ProcessGone` watches; slots only where
#: there is one.
MAY_BE_MISSING = {"orderpost_database_connections", "orderpost_loop_age_seconds", "orderpost_paused"}
MAY_BE_MISSING |= {"orderpost_replication_slot_active", "orderpost_replication_slot_kept_bytes"}
needs_promtool = needs("prometheus", shutil.which("promtool"))


def rules() -> list[dict[str, Any]]:
    """Return every rule of the shipped file."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


SEVERITIES = {"P1": "critical", "P2": "warning", "P3": "info"}


def alerts() -> dict[str, dict[str, Any]]:
    """Return the alerting rules by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def expected(case: Case, description: str) -> dict[str, Any]:
    """Return the one alert of a case as promtool wants it."""
    rule = alerts()[case.alert]
    summary = rule["annotations"]["summary"]
    for name, value in case.labels.items():
        summary = summary.replace(f"{{{{ $labels.{name} }}}}", value)
    return {
        "exp_labels": {**rule["labels"], **case.labels},
        "exp_annotations": {
            "summary": summary,
            "description": description,
            "runbook_url": f"{DOCS}/guides/alerts.md#{case.alert.lower()}",
        },
    }


def alone(name: str) -> dict[str, Any]:
    """Return a rule file of one alert and of what is recorded for it: promtool tries every rule of a file."""
    rule = alerts()[name]
    recorded = [one for one in rules() if "record" in one and one["record"] in rule["expr"]]
    return {"groups": [{"name": name, "rules": [*recorded, rule]}]}


def document(case: Case) -> dict[str, Any]:
    """Return a case in the format of `promtool test rules`."""
    checks: list[dict[str, Any]] = [
        {"eval_time": at, "alertname": case.alert, "exp_alerts": []} for at in case.silent.split()
    ]
    checks += [
        {"eval_time": at, "alertname": case.alert, "exp_alerts": [expected(case, description)]}
        for at, description in case.fires.items()
    ]
    return {
        "rule_files": [f"{case.alert}.yml"],
        "evaluation_interval": case.evaluation,
        "tests": [
            {
                "interval": case.interval,
                "external_labels": {"docs": DOCS},
                "input_series": [
                    {"series": series, "values": values} for series, values in case.series.items()
                ],
                "alert_rule_test": checks,
            }
        ],
    }


@needs_promtool
def test_each_alert_fires_when_it_must_and_not_before_and_ends(tmp_path):
    for name in alerts():
        (tmp_path / f"{name}.yml").write_text(yaml.safe_dump(alone(name), sort_keys=False))
    files = {case: tmp_path / f"{number}.case.yml" for number, case in enumerate(CASES)}
    for case, path in files.items():
        path.write_text(yaml.safe_dump(document(case), sort_keys=False))
    command = ["promtool", "test", "rules", *map(str, files.values())]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120)
    results = re.split(r"^Unit Testing: +", done.stdout, flags=re.MULTILINE)[1:]
    assert len(results) == len(CASES)
    failed = {str(case): text for case, text in zip(files, results, strict=True) if "SUCCESS" not in text}
    assert not failed, "\n".join(f"{case}: {text}" for case, text in failed.items())


def test_every_alert_has_a_case_in_which_it_fires_and_ends():
    assert alerts().keys() - {case.alert for case in CASES if case.fires and case.ends} == set()


@needs_promtool
def test_prometheus_takes_the_configuration():
    for kind, name in (("config", "prometheus.yml"), ("rules", "alerts.yml")):
        path = RULES.with_name(name)
        done = subprocess.run(
            ["promtool", "check", kind, str(path)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr


@needs("prometheus-alertmanager", shutil.which("amtool"))
def test_alertmanager_takes_the_configuration():
    path = PROJECT / "docker" / "alertmanager" / "alertmanager.yml"
    done = subprocess.run(["amtool", "check-config", str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_says_how_urgent_it_is_what_it_means_and_where_to_read_on():
    for name, rule in alerts().items():
        assert rule["labels"]["severity"] == SEVERITIES[rule["labels"]["priority"]], name
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}, name
        assert rule["annotations"]["runbook_url"].endswith(f"/guides/alerts.md#{name.lower()}"), name
        assert rule["for"], name


def test_a_missing_metric_is_an_alert_if_other_alerts_could_not_fire_without_it():
    watched = set(re.findall(r"absent\((orderpost_\w+)", " ".join(rule["expr"] for rule in rules())))
    used = {
        name
        for rule in rules()
        for name in re.findall(r"\borderpost_\w+", rule["expr"])
        if not name.endswith(("_total", "_bucket", "_count"))
    }
    assert used - watched == MAY_BE_MISSING
