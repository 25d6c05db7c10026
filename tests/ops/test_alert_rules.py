"""Each alert with its real durations: it fires when it must, not before, and ends. What it names exists."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import yaml

from local.machine import PROJECT
from notifications.providers import registry
from operations.rules import SUBJECT
from tests.kit.alerts import DASHBOARDS, RULES, alerts, needs_promtool, queries, rules
from tests.kit.needs import needs
from tests.kit.roles import OPTIONAL, RUNNING
from tests.kit.waiting import PATIENCE
from tests.kit.words import declarations
from tests.ops.alert_cases import CASES, Case

DOCS = "https://docs.example.com"
#: Metrics of Prometheus and of node_exporter.
FOREIGN = re.compile(r"(up|ALERTS|node_\w+)$")
#: Shown together with one that is watched, or by each process that `ProcessGone` watches; slots only where
#: there is one.
MAY_BE_MISSING = {"orderpost_heartbeat_age_seconds", "orderpost_loop_age_seconds", "orderpost_paused"}
MAY_BE_MISSING |= {"orderpost_replication_slot_active", "orderpost_replication_slot_kept_bytes"}
SEVERITIES = {"P1": "critical", "P2": "warning", "P3": "info"}


def expected(case: Case, description: str) -> dict[str, Any]:
    """Return the one alert of a case as promtool wants it."""
    rule = alerts()[case.alert]
    summary = rule["annotations"]["summary"].replace(SUBJECT, f": {case.labels.get('subject')}")
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
    recorded = [
        recording for recording in rules() if "record" in recording and recording["record"] in rule["expr"]
    ]
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
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE
    )
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
            ["promtool", "check", kind, str(path)], capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stdout + done.stderr


@needs("prometheus-alertmanager", shutil.which("amtool"))
def test_alertmanager_takes_the_configuration_and_tells_each_severity_to_its_receiver():
    path = str(PROJECT / "docker" / "alertmanager" / "alertmanager.yml")

    def amtool(*arguments: str) -> str:
        done = subprocess.run(["amtool", *arguments], capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    amtool("check-config", path)
    for severity, receiver in {"critical": "pager", "warning": "chat", "info": "ticket"}.items():
        assert amtool("config", "routes", "test", f"--config.file={path}", f"severity={severity}") == receiver


def test_an_alert_is_silenced_only_by_and_for_alerts_that_exist():
    text = (PROJECT / "docker" / "alertmanager" / "alertmanager.yml").read_text()
    matchers = re.findall(r"alertname =~? \"?([\w|]+)", text.partition("inhibit_rules:")[2])
    named = {name for matcher in matchers for name in matcher.split("|")}
    assert len(named) > 5 and named <= alerts().keys()


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


def named(expr: str) -> set[str]:
    """Return the metrics that a query names."""
    bare = re.sub(r"\{[^}]*\}|\"[^\"]*\"", "", expr)
    bare = re.sub(r"\b(by|on|without|group_left|ignoring) *\([^)]*\)", "", bare)
    return set(re.findall(r"\b(?:orderpost[_:][\w:]+|up|ALERTS|node_\w+)\b", bare))


def test_the_metrics_that_rules_and_dashboards_name_exist():
    """tests/ops/test_metrics.py compares the page with what the processes show."""
    asked = [rule["expr"] for rule in rules()]
    asked += [expr for dashboard in DASHBOARDS.values() for _, expr in queries(dashboard)]
    used = {name for expr in asked for name in named(expr)}
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in used - recorded if not FOREIGN.match(name)}
    assert len(names) > 25
    page = (PROJECT / "docs" / "reference" / "metrics.md").read_text()
    assert {name for name in names if f"`{name}`" not in page} == set()
    assert recorded <= used


def test_each_alert_has_a_paragraph_with_its_priority_in_the_runbook_and_each_paragraph_an_alert():
    page = (PROJECT / "docs" / "guides" / "alerts.md").read_text()
    runbook = page.partition("\n## Alerts\n")[2].partition("\n## ")[0]
    priorities = dict(re.findall(r"^### (.+)\n\*\*(P\d)\.\*\* ", runbook, re.MULTILINE))
    assert priorities == {name: rule["labels"]["priority"] for name, rule in alerts().items()}
    assert runbook.count("\n### ") == len(priorities)


def test_prometheus_scrapes_each_role_and_an_alert_tells_of_each_that_is_gone():
    (job,) = yaml.safe_load(RULES.with_name("prometheus.yml").read_text())["scrape_configs"]
    assert [target["labels"]["role"] for target in job["static_configs"]] == RUNNING
    gone = alerts()["ProcessGone"]["expr"]
    watched = re.findall(r'absent\(orderpost_build_info\{job="orderpost", role="(\w+)"\}\)', gone)
    assert ["web", *watched] == [*RUNNING, *OPTIONAL]  # the web has an alert of its own, ApiDown
    for role in OPTIONAL:  # an installation without it has no heartbeat
        used = f'and on () orderpost_heartbeat_age_seconds{{name="{role}"}}'
        assert re.search(rf'role="{role}"\}}\)\s+{re.escape(used)}', gone)


def test_an_alert_expects_events_of_each_provider_that_posts_some():
    silent = {name for name, declared in declarations().items() if not declared.webhook}
    assert silent < set(registry.NAMES)
    assert set(re.findall(r'provider!="(\w+)"', alerts()["EmailWebhooksSilent"]["expr"])) == silent
