"""What Maven fetched is run only if it is what the project's list says."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from local.kafka import jars
from local.machine import LocalRunFailed

#: Stands for the registry: it "fetches" one file and counts how often it was asked.
MAVEN = """#!/bin/sh
for word in "$@"; do case "$word" in -DoutputDirectory=*) echo jar > "${word#*=}/one-1.0.jar";; esac; done
echo asked >> "$0.log"
"""


@pytest.fixture
def jar_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a set of one file, with Maven and the cache in the test's folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(jars, "java", lambda: "java")
    (tmp_path / "mvn").write_text(MAVEN)
    (tmp_path / "mvn").chmod(0o755)
    directory = tmp_path / "example"
    directory.mkdir()
    (directory / "pom.xml").write_text("<project/>")
    digest = hashlib.sha256(b"jar\n").hexdigest()
    (directory / jars.SUMS).write_text(f"{digest}  one-1.0.jar\n")
    return directory


def test_it_fetches_once_what_the_list_says(jar_set: Path, tmp_path: Path) -> None:
    for _ in range(2):
        (jar,) = jars.fetch(jar_set)
        assert jar.read_bytes() == b"jar\n"
    assert (tmp_path / "mvn.log").read_text() == "asked\n"


@pytest.mark.parametrize(
    "sums", ["0" * 64 + "  one-1.0.jar\n", "", "0" * 64 + "  two-1.0.jar\n"], ids=["other", "more", "less"]
)
def test_it_refuses_anything_else_and_keeps_nothing(jar_set: Path, tmp_path: Path, sums: str) -> None:
    (jar_set / jars.SUMS).write_text(sums)
    with pytest.raises(LocalRunFailed, match=r"one-1\.0\.jar"):
        jars.fetch(jar_set)
    assert list((tmp_path / "cache").rglob("*.jar")) == []


def test_a_new_version_is_pinned_by_what_maven_fetches(jar_set: Path) -> None:
    wanted = (jar_set / jars.SUMS).read_text()
    (jar_set / jars.SUMS).write_text("")
    jars.pin(jar_set)
    assert (jar_set / jars.SUMS).read_text() == wanted


def test_without_maven_it_says_so(jar_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(jars.Unavailable, match="Maven"):
        jars.fetch(jar_set)


@pytest.mark.parametrize("directory", [jars.BROKER, jars.CONNECT], ids=lambda path: path.name)
def test_the_projects_lists_have_a_sum_for_each_file(directory: Path) -> None:
    sums = jars.read_sums(directory)
    assert len(sums) > 20
    assert all(len(digest) == 64 and name.endswith(".jar") for name, digest in sums.items())
