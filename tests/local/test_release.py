"""`make release` makes the documents, the chart and the image of a release. Its drill makes all of them."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from local import release
from local.machine import PROJECT
from local.release import ReleaseFailed
from tests.docker import engine, images
from tests.docker.chart import needs_helm

LOCK = (PROJECT / "requirements" / "image.txt").read_text()
WORKFLOW = yaml.safe_load((PROJECT / ".github" / "workflows" / "release.yml").read_text())


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that no change is uncommitted."""
    monkeypatch.setattr(release, "output", lambda *command: "")


@pytest.mark.usefixtures("committed")
def test_another_versions_tag_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["--tag", "v9.9.9", "--folder", str(tmp_path / "files")]) == 1
    assert f"not the version {release.version()}" in capsys.readouterr().err
    assert not (tmp_path / "files").exists()


def test_uncommitted_changes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "output", lambda *command: " M README.md")
    with pytest.raises(ReleaseFailed, match="Commit these changes first"):
        release.make(tmp_path / "files", tag="", parts=["documents"])


@pytest.mark.usefixtures("committed")
def test_an_unknown_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseFailed, match="has no part immage"):
        release.make(tmp_path / "files", tag="", parts=["immage"])


@pytest.mark.usefixtures("committed")
def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(ReleaseFailed, match="is not empty"):
        release.make(tmp_path, tag="", parts=[])
    assert (tmp_path / "mine").exists()


def test_a_program_that_is_missing_is_named() -> None:
    with pytest.raises(ReleaseFailed, match="no-such-program is not installed"):
        release.run("no-such-program")


def test_the_bill_has_every_package_of_production_with_its_hashes() -> None:
    bill = json.loads(release.bill_of_materials("1.2.3", LOCK))
    found = {(one["name"], one["version"]): one["hashes"] for one in bill["components"]}
    assert found.keys() == {
        tuple(line.split(" ")[0].split("==")) for line in LOCK.splitlines() if "==" in line and line[0] != " "
    }
    assert sum(map(len, found.values())) == LOCK.count("--hash=sha256:")
    assert bill["metadata"]["component"]["version"] == "1.2.3"


def test_an_archive_depends_on_names_and_contents_alone(tmp_path: Path) -> None:
    for number in (1, 2):
        file = tmp_path / f"file{number}"
        file.write_text("the same")
        release.pack(tmp_path / f"{number}.tar.gz", {"b": file, "a": file})
    first, second = ((tmp_path / f"{number}.tar.gz").read_bytes() for number in (1, 2))
    assert first == second
    with tarfile.open(tmp_path / "1.tar.gz") as tar:
        assert tar.getnames() == ["a", "b"]


def test_the_workflow_makes_the_same_files_on_the_tags_of_releases() -> None:
    (job,) = WORKFLOW["jobs"].values()
    commands = "\n".join(step.get("run", "") for step in job["steps"])
    (parts,) = re.findall(r"--only ([\w,]+)", commands)
    assert set(parts.split(",")) < set(release.PARTS)
    assert WORKFLOW[True]["push"]["tags"] == ["v*"]  # YAML reads `on` as true
    (build,) = (step["with"] for step in job["steps"] if "build-push" in step.get("uses", ""))
    given = set(re.findall(r"^(\w+)=", build["build-args"], re.MULTILINE))
    assert given == set(re.findall(r"\b([A-Z]+)(?:=\S+)?(?= |$)", _args())) - {"ARG"}


def _args() -> str:
    """Return the names of the Dockerfile's last ARG line."""
    (line,) = re.findall(r"^ARG (BASE .+)$", (PROJECT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    return str(line)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Make a release in a clone of the last commit."""
    clone = tmp_path_factory.mktemp("release") / "clone"
    subprocess.run(["git", "clone", "--quiet", str(PROJECT), str(clone)], check=True)
    with engine.alone():
        images.make_base()
        environment = engine.environment() | {
            "ENGINE": "podman",
            "BASE": images.BASE,
            "BUILD_ARGS": "--network host",
        }
        done = subprocess.run(
            ["make", "release"], cwd=clone, env=environment, capture_output=True, text=True, timeout=500
        )
        assert done.returncode == 0, done.stdout + done.stderr
        yield clone / "var" / "release"


@pytest.mark.drill
@needs_helm
@pytest.mark.skipif(engine.missing() != "", reason=engine.missing() or "nothing is missing")
def test_a_clean_clone_makes_every_file_of_a_release(files: Path) -> None:
    number = release.version()
    sums = dict(line.split("  ")[::-1] for line in (files / release.SUMS).read_text().splitlines())
    assert sums == {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files.iterdir()
        if file.name != release.SUMS
    }
    assert len(sums) == 7
    assert json.loads((files / "openapi.json").read_text())["info"]["version"] == number
    assert json.loads((files / "asyncapi.json").read_text())["info"]["version"] == number
    with tarfile.open(files / f"orderpost-docs-{number}.tar.gz") as tar:
        assert "index.html" in tar.getnames()
    with tarfile.open(files / f"orderpost-schemas-{number}.tar.gz") as tar:
        assert "orders/schemas/out/order.order.paid.v1.json" in tar.getnames()
    (chart,) = files.glob("*.tgz")
    subprocess.run(["helm", "template", str(chart), "-f", _smallest()], check=True, capture_output=True)
    (image,) = files.glob(f"orderpost-image-{number}-*.tar.gz")
    with gzip.open(image) as packed, tarfile.open(fileobj=packed) as tar:
        names = tar.getnames()
        manifest = json.load(tar.extractfile("manifest.json") or pytest.fail(f"no manifest in {names}"))
        config = json.load(tar.extractfile(manifest[0]["Config"]) or pytest.fail("no configuration"))
    labels = config["config"]["Labels"]
    assert labels["org.opencontainers.image.version"] == number
    assert re.fullmatch(r"[0-9a-f]{40}", labels["org.opencontainers.image.revision"])


def _smallest() -> str:
    return str(PROJECT / "docker" / "helm" / "orderpost" / "ci" / "smallest-values.yaml")
