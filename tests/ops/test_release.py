"""The version, the pinned requirements, and the workflow of a release fit pyproject.toml."""

from __future__ import annotations

import re
import subprocess
import tomllib

import pytest
import yaml

from local.machine import PROJECT
from tests.kit.chart import CHART
from tests.kit.words import version

PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
VERSION: str = PYPROJECT["project"]["version"]


def test_a_running_program_and_the_chart_tell_the_version_of_pyproject() -> None:
    assert version() == VERSION
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == VERSION
    assert chart["version"].replace("-dev.", ".dev") == VERSION


def entries(name: str) -> list[str]:
    """Return the pinned packages of requirements/<name>.txt, each with its marker and hashes."""
    text = (PROJECT / "requirements" / f"{name}.txt").read_text()
    return re.findall(r"^[a-z0-9].*\n(?: .*\n)*", text, re.MULTILINE)


def names(name: str) -> set[str]:
    return {entry.partition("==")[0] for entry in entries(name)}


class TestRequirements:
    #: By file: the one that it contains.
    BELOW = {"image": "", "run": "image", "dev": "run", "bench": "run", "uv": ""}

    @pytest.mark.parametrize(("name", "below"), BELOW.items())
    def test_each_package_is_pinned_by_hash_and_as_in_the_file_below(self, name: str, below: str) -> None:
        assert entries(name) and all(" \\\n    --hash=sha256:" in entry for entry in entries(name))
        assert not below or set(entries(below)) < set(entries(name))

    def test_what_pyproject_asks_for_is_pinned_and_the_image_has_no_tool_of_developers(self) -> None:
        extras = PYPROJECT["project"]["optional-dependencies"].values()
        asked = PYPROJECT["dependency-groups"] | {
            "image": PYPROJECT["project"]["dependencies"] + [line for extra in extras for line in extra]
        }
        assert set(asked) == set(self.BELOW)
        for name, lines in asked.items():
            wanted = {re.split(r"[\[<>=]", line)[0] for line in lines if isinstance(line, str)}
            assert wanted <= names(name), name
        assert not names("image") & {"supervisor", "uv", "pytest"} and "pytest" not in names("run")


def test_the_workflow_of_a_release_gives_the_image_what_the_dockerfile_asks_for() -> None:
    workflow = yaml.safe_load((PROJECT / ".github" / "workflows" / "release.yml").read_text())
    assert workflow[True]["push"]["tags"] == ["v*"]  # YAML reads `on` as true
    (job,) = workflow["jobs"].values()
    (build,) = (step["with"] for step in job["steps"] if "build-push" in step.get("uses", ""))
    (asked,) = re.findall(r"^ARG (BASE .+)$", (PROJECT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    passed = set(re.findall(r"^(\w+)=", build["build-args"], re.MULTILINE))
    assert passed == set(re.findall(r"\b([A-Z]+)(?:=\S+)?(?= |$)", asked))


def test_the_workflow_of_a_release_refuses_a_tag_of_another_version() -> None:
    (command,) = re.findall(
        r"^ +(grep .+)$", (PROJECT / ".github" / "workflows" / "release.yml").read_text(), re.MULTILINE
    )
    for tag, status in ((f"v{VERSION}", 0), ("v9.9.9", 1)):
        done = subprocess.run(
            ["sh", "-c", command], cwd=PROJECT, env={"GITHUB_REF_NAME": tag}, capture_output=True, check=False
        )
        assert done.returncode == status
