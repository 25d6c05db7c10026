"""Grafana does not run here: its files are read as it would, and tests/flows asks a Prometheus each query."""

from __future__ import annotations

import itertools
import json
import subprocess
from typing import Any

import pytest
import yaml

from local.machine import PROJECT
from tests.ops.test_alert_rules import needs_promtool

GRAFANA = PROJECT / "docker" / "grafana"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
DASHBOARDS = {
    path.stem: json.loads(path.read_text()) for path in sorted((GRAFANA / "dashboards").glob("*.json"))
}
TITLES = {"Order events", "Email delivery"}
WIDTH, MOST_PANELS = 24, 16
dashboards = pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)


def queries(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    """Return each panel's title with each of its queries, as Grafana would send them."""
    return [
        (panel["title"], target["expr"].replace("$__rate_interval", "5m"))
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]


def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
    at = panel["gridPos"]
    across, down = range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])
    return set(itertools.product(across, down))


def test_there_is_one_for_each_subject_with_an_address_of_its_own():
    assert {one["title"] for one in DASHBOARDS.values()} == TITLES
    assert len({one["uid"] for one in DASHBOARDS.values()}) == len(TITLES)


@dashboards
def test_its_panels_have_ids_of_their_own_units_thresholds_and_a_sentence(dashboard):
    panels = dashboard["panels"]
    assert 1 < len(panels) <= MOST_PANELS
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["type"] in ("stat", "timeseries")
        assert panel["description"].endswith("."), panel["title"]
        assert defaults["unit"] and defaults["thresholds"]["steps"][0]["value"] is None, panel["title"]
        limits = [step["value"] for step in defaults["thresholds"]["steps"][1:]]
        assert limits == sorted(limits), panel["title"]


@dashboards
def test_its_panels_ask_the_chosen_prometheus(dashboard):
    (variable,) = dashboard["templating"]["list"]
    assert (variable["name"], variable["type"], variable["query"]) == (
        "datasource",
        "datasource",
        "prometheus",
    )
    for panel in dashboard["panels"]:
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references) > 0
        assert [panel["datasource"], *(target["datasource"] for target in panel["targets"])] == [
            DATASOURCE
        ] * (len(references) + 1)


@dashboards
def test_its_panels_fill_rows_and_lie_side_by_side(dashboard):
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        place = cells(panel)
        assert not place & taken, f"{panel['title']} lies over another"
        assert all(x < WIDTH for x, _ in place), f"{panel['title']} is too wide"
        taken |= place
    assert len({y for _, y in taken}) == max(y for _, y in taken) + 1, "a row is empty"


@needs_promtool
@dashboards
def test_prometheus_can_read_each_query(dashboard, tmp_path):
    asked = [expr for _, expr in queries(dashboard)]
    asked += [one["expr"] for one in dashboard["annotations"]["list"]]
    recorded = [{"record": f"query:{number}", "expr": expr} for number, expr in enumerate(asked)]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": recorded}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(path)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_is_told_where_they_and_prometheus_are():
    provisioning = GRAFANA / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["type"] == "prometheus" and source["url"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "orderpost.yml").read_text())["providers"]
    compose = (PROJECT / "docker" / "compose.yaml").read_text()
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in compose
