"""Read docker/helm as files, and render it if helm is installed."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from local.machine import PROJECT
from tests.kit.needs import needs

CHART = PROJECT / "docker" / "helm" / "orderpost"
#: The tested sets of values: the smallest that a shop needs, everything, and other choices.
SETS = sorted((CHART / "ci").glob("*-values.yaml"))
#: Kinds of objects that have no schema in Kubernetes.
FOREIGN_KINDS = {"PodMonitor", "PrometheusRule", "ScaledObject"}
needs_helm = needs("helm", shutil.which("helm"))
each_set = pytest.mark.parametrize("values", SETS, ids=lambda path: path.stem)

Object = dict[str, Any]


def chart_values() -> Object:
    """Return the chart's own values."""
    values: Object = yaml.safe_load((CHART / "values.yaml").read_text())
    return values


def schema() -> Object:
    """Return the schema of the chart's values."""
    document: Object = json.loads((CHART / "values.schema.json").read_text())
    return document


def documented_settings() -> set[str]:
    """Return every name of docs/reference/configuration.md's tables."""
    page = (PROJECT / "docs" / "reference" / "configuration.md").read_text()
    rows = re.findall(r"^\| (`[^|]*) \|", page, flags=re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([A-Z][A-Z0-9_]+)`", row)}


def helm(
    verb: str, *arguments: str, values: Path | None = None, chart: Path = CHART
) -> subprocess.CompletedProcess[str]:
    files = ["--values", str(values)] if values else []
    # A helm that was built from source renders for Kubernetes 1.20 unless told otherwise.
    name = ["orderpost", "--kube-version", "1.30.0"] if verb == "template" else []
    return subprocess.run(
        ["helm", verb, *name, str(chart), *files, *arguments], capture_output=True, text=True, timeout=60
    )


@functools.cache
def rendered(values: Path, *arguments: str) -> list[Object]:
    """Return the objects that helm makes of a set of values."""
    done = helm("template", *arguments, values=values)
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    """Return the objects of a kind, by their name without the release's name."""
    return {
        re.sub("^(orderpost|post)-", "", manifest["metadata"]["name"]): manifest
        for manifest in objects
        if manifest["kind"] == kind
    }


def pods(objects: list[Object]) -> dict[str, Object]:
    """Return the spec of every pod that would run, by the name of its object."""
    specs = {}
    for manifest in objects:
        if manifest["kind"] == "Pod":
            specs["test"] = manifest["spec"]
        elif manifest["kind"] == "CronJob":
            template = manifest["spec"]["jobTemplate"]["spec"]["template"]
            specs[template["metadata"]["labels"]["app.kubernetes.io/component"]] = template["spec"]
        elif "template" in manifest.get("spec", {}):
            template = manifest["spec"]["template"]
            specs[template["metadata"]["labels"]["app.kubernetes.io/component"]] = template["spec"]
    return specs


def environment(objects: list[Object], pod: Object) -> dict[str, str]:
    """Return the variables of a pod's container. The last one of a name wins, as in Kubernetes."""
    (container,) = pod["containers"]
    configs = {
        manifest["metadata"]["name"]: manifest["data"] or {}
        for manifest in objects
        if manifest["kind"] == "ConfigMap"
    }
    variables: dict[str, str] = {}
    for source in container.get("envFrom", []):
        variables |= configs[source["configMapRef"]["name"]]
    for variable in container.get("env", []):
        variables[variable["name"]] = variable.get("value", "")
    return variables


def mounts(pod: Object) -> dict[str, Object]:
    """Return the volumes of a pod by their path in its container."""
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    return {mount["mountPath"]: volumes[mount["name"]] for mount in pod["containers"][0]["volumeMounts"]}
