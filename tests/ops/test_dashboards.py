"""Grafana does not run here. Its files are read as Grafana would, and promtool reads each query."""

from __future__ import annotations

import subprocess

import pytest
import yaml

from local.machine import PROJECT
from tests.kit.alerts import DASHBOARDS, needs_promtool, queries
from tests.kit.waiting import PATIENCE

GRAFANA = PROJECT / "docker" / "grafana"
dashboards = pytest.mark.parametrize("dashboard", DASHBOARDS.values(), ids=DASHBOARDS)


def test_each_dashboard_has_an_address_of_its_own():
    assert len({dashboard["uid"] for dashboard in DASHBOARDS.values()}) == len(DASHBOARDS) > 1


@dashboards
def test_its_panels_have_ids_of_their_own_and_ask_the_chosen_prometheus(dashboard):
    (variable,) = dashboard["templating"]["list"]
    chosen = {"type": variable["query"], "uid": f"${{{variable['name']}}}"}
    assert chosen["type"] == "prometheus"
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"]) > 1
    for panel in dashboard["panels"]:
        assert [panel["datasource"], *(target["datasource"] for target in panel["targets"])] == [chosen] * (
            len(panel["targets"]) + 1
        ), panel["title"]


@needs_promtool
@dashboards
def test_prometheus_can_read_each_query(dashboard, tmp_path):
    asked = [expr for _, expr in queries(dashboard)]
    asked += [annotation["expr"] for annotation in dashboard["annotations"]["list"]]
    recorded = [{"record": f"query:{number}", "expr": expr} for number, expr in enumerate(asked)]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": recorded}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(path)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_grafana_is_told_where_they_and_prometheus_are():
    provisioning = GRAFANA / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert source["type"] == "prometheus" and source["url"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "orderpost.yml").read_text())["providers"]
    compose = (PROJECT / "docker" / "compose.yaml").read_text()
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in compose
