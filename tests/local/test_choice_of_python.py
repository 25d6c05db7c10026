"""`make` sets .venv up with the newest tested Python that can, or with the operator's own choice."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from local.machine import PROJECT

#: Stands for a Python: it has the modules that `make` asks for or not, and names itself instead of running.
FAKE = """#!/bin/sh
if [ "$1" = -c ]; then
    case "$2" in *ensurepip*) exit $(({old} | {lacks}));; esac
    exit {old}
fi
echo "{name} runs $*"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(PROJECT / "Makefile", tmp_path)
    (tmp_path / "bin").mkdir()
    return tmp_path


def add(project: Path, name: str, *, lacks: int = 0, old: int = 0) -> None:
    file = project / "bin" / name
    file.write_text(FAKE.format(name=name, lacks=lacks, old=old))
    file.chmod(0o755)


def choice(project: Path, target: str = "setup", **environment: str) -> str:
    """Return what `make` says. Only the fakes are in its path."""
    for program in ("sh", "make"):
        found = shutil.which(program)
        assert found
        (project / "bin" / program).unlink(missing_ok=True)
        (project / "bin" / program).symlink_to(found)
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "ORDERPOST_PYTHON"))
    }
    done = subprocess.run(
        ["make", "-s", target],
        cwd=project,
        env=kept | {"PATH": str(project / "bin")} | environment,
        capture_output=True,
        text=True,
    )
    return (done.stdout + done.stderr).strip()


def test_the_newest_comes_first(project: Path) -> None:
    for name in ("python3", "python3.11", "python3.13"):
        add(project, name)
    assert choice(project) == "python3.13 runs local/setup.py dev"
    assert choice(project, "setup-run") == "python3.13 runs local/setup.py run"


def test_one_that_can_make_an_environment_comes_before_a_newer_one_that_cannot(project: Path) -> None:
    add(project, "python3.13", lacks=1)
    add(project, "python3.11")
    assert choice(project) == "python3.11 runs local/setup.py dev"


def test_one_that_cannot_says_itself_what_to_install(project: Path) -> None:
    add(project, "python3", lacks=1)
    assert choice(project) == "python3 runs local/setup.py dev"


def test_the_operators_choice_wins(project: Path) -> None:
    add(project, "python3.14")
    add(project, "mine", lacks=1)
    assert choice(project, ORDERPOST_PYTHON="mine") == "mine runs local/setup.py dev"


def test_without_any_it_says_what_to_install(project: Path) -> None:
    add(project, "python3", old=1)
    assert "orderpost needs Python 3.11 or later" in choice(project)
