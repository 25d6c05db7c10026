"""The Helm chart says what the project says: commands, settings, probes, metrics, rules. Needs no helm."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from config import roles
from local.machine import PROJECT
from tests.kit.chart import CHART, SETS, chart_values, documented_settings, schema
from tests.kit.words import PROBES
from tests.ops.test_alert_rules import RULES

TEMPLATES = "\n".join(path.read_text() for path in (CHART / "templates").rglob("*.*"))
#: The sections of the chart's README that say what happens to `replicas`.
SECTIONS = ("Install", "Autoscaling")
SECRET = re.compile(r".*(_KEY|_SECRET|_PASSWORD|_TOKEN|_BASIC_AUTH|DATABASE_URL|EMAIL_URL|KAFKA_OPTIONS)$")
FOREIGN_SECRETS = {"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS"}


def test_each_role_is_one_of_the_images():
    values = chart_values()
    assert values["roles"].keys() == roles.commands().keys() - {"migrate", "cdc"}
    for name, role in {**values["roles"], "migrate": values["migrate"]}.items():
        assert role["args"] == [name]


def test_each_role_is_probed_by_the_command_of_the_image():
    assert "[python, manage.py, health, %s]" in TEMPLATES
    dockerfile = (PROJECT / "docker" / "Dockerfile").read_text()
    assert 'CMD ["python", "manage.py", "health"]' in dockerfile
    # A probe over HTTP needs a request thread, and all of them wait during an outage of the database.
    assert set(re.findall(r"httpGet: \{path: (\S+),", TEMPLATES)) == {"/readyz"} <= PROBES.keys()


@pytest.mark.parametrize(
    "name", sorted(documented_settings() | {"AWS_REGION", "OTEL_SERVICE_NAME", *FOREIGN_SECRETS})
)
def test_a_secret_is_no_setting_and_only_some_roles_get_the_owners_url(name):
    is_secret = bool(SECRET.match(name)) or name in FOREIGN_SECRETS
    assert is_accepted({"settings": {name: "x"}}) is not is_secret
    assert is_accepted({"roles": {"worker": {"settings": {name: "x"}}}}) is not is_secret
    is_owners = name == chart_values()["secrets"]["owner"]["key"]
    assert is_accepted({"secrets": {"keys": [name]}}) is not is_owners


def is_accepted(values: dict[str, Any]) -> bool:
    return bool(Draft7Validator(schema()).is_valid(values))


def test_templates_and_values_name_only_documented_settings():
    named = {name.removesuffix("_FILE") for name in re.findall(r"\{name: ([A-Z][A-Z0-9_]+),", TEMPLATES)}
    named |= set(re.findall(r"\bsettings\.([A-Z][A-Z0-9_]+)", TEMPLATES, flags=re.IGNORECASE))
    values = chart_values()
    named |= values["settings"].keys() | set(values["secrets"]["keys"])
    for role in values["roles"].values():
        named |= role.get("settings", {}).keys()
    assert {"DATABASE_URL", "EMAIL_READ_TIMEOUT", "PROMETHEUS_MULTIPROC_DIR"} <= named
    assert named - documented_settings() == set()


def test_roles_are_scaled_by_metrics_that_exist():
    page = (PROJECT / "docs" / "reference" / "metrics.md").read_text()
    scaled = {
        name: role["autoscaling"] for name, role in chart_values()["roles"].items() if "autoscaling" in role
    }
    assert scaled.keys() == {"web", "worker", "relay", "consumer"}
    for name, scaling in scaled.items():
        if "metric" not in scaling:
            assert scaling["cpu"], name
            continue
        row = next(row for row in page.splitlines() if row.startswith(f"| `{scaling['metric']}` "))
        labels = set(re.findall(r"`(\w+)`", row.split("|")[2]))
        assert scaling["labels"].keys() <= labels, name
        assert set(re.findall(r"\borderpost_\w+", scaling["query"])) == {scaling["metric"]}, name
        assert set(re.findall(r"(\w+)=\"", scaling["query"])) == scaling["labels"].keys(), name


def test_the_alert_rules_are_the_projects_own_file():
    assert (CHART / "files" / "alerts.yml").resolve() == RULES


def test_the_chart_has_the_projects_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    assert chart["appVersion"] == version
    assert chart["version"].replace("-dev.", ".dev") == version


def test_the_readme_explains_every_value_at_the_top():
    page = (CHART / "README.md").read_text()
    cells = re.findall(r"^\| (`[^|]*) \|", page, flags=re.MULTILINE)
    named = {name for cell in cells for name in re.findall(r"`(\w+)[\w.]*`", cell)}
    assert named == chart_values().keys()


def test_the_readme_warns_of_two_ways_to_lose_replicas_or_an_upgrade():
    """No template can prevent either: both come from how Kubernetes merges the field `replicas`."""
    page = (CHART / "README.md").read_text()
    install, autoscaling = (page.partition(f"## {title}\n")[2].partition("\n## ")[0] for title in SECTIONS)
    assert "kubectl scale" in install and "--force-conflicts" in install
    assert "to one pod" in autoscaling


def test_each_set_of_values_says_what_it_is_for():
    assert len(SETS) >= 3
    assert [path for path in SETS if not path.read_text().startswith("# ")] == []
