"""`make` makes .venv, installs what it lacks with uv or else pip, and keeps it while it is current.

The Pythons, pip, and uv of most tests only write down how they were called.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from local.machine import PROJECT

#: Stands for a Python, which has the modules that setup.sh asks for or not.
PYTHON = """#!/bin/sh
case "$1 $2" in
*WHEEL_PKG_DIR*) echo "/wheels" ;;
-c*%d.%d*) echo "{version}" ;;
-c*ensurepip*) exit $(({old} | {lacks})) ;;
-c*) exit {old} ;;
"-m venv")
    echo "{name} makes .venv" >>calls
    mkdir making || echo "two at once" >>calls
    [ ! -e slow ] || sleep 0.3
    rmdir making
    mkdir -p .venv/bin .venv/lib/python{version}/site-packages
    ln -s "$0" .venv/bin/python ;;
"-m pip")
    echo "pip installs ${{*##* }}" >>calls
    case "$*" in
    *uv.txt)
        [ ! -e no-wheel ] || exit 1
        cp bin/uv .venv/bin/uv ;;
    *) [ ! -e no-network ] || exit 1 ;;
    esac ;;
esac
"""
UV = """#!/bin/sh
echo "uv installs ${*##* }" >>calls
[ ! -e no-network ]
"""
#: All that a machine needs beside Python.
PROGRAMS = (
    "sh",
    "make",
    "flock",
    "cat",
    "cp",
    "date",
    "dirname",
    "ln",
    "mkdir",
    "readlink",
    "rm",
    "rmdir",
    "sleep",
    "touch",
)
FIRST = ["python3.11 makes .venv", "pip installs requirements/uv.txt", "uv installs requirements/dev.txt"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a checkout with empty requirements, whose PATH is its bin/ alone."""
    folder = tmp_path / "checkout"
    for name in ("bin", "local", "requirements"):
        (folder / name).mkdir(parents=True)
    shutil.copy(PROJECT / "Makefile", folder)
    shutil.copy(PROJECT / "local" / "setup.sh", folder / "local")
    for file in (PROJECT / "requirements").iterdir():
        (folder / "requirements" / file.name).touch()
        age(folder / "requirements" / file.name, 60)
    for program in PROGRAMS:
        path = shutil.which(program)
        assert path, program
        (folder / "bin" / program).symlink_to(path)
    (folder / "bin" / "uv").write_text(UV)
    (folder / "bin" / "uv").chmod(0o755)
    return folder


@pytest.fixture
def ready(project: Path) -> Path:
    """Return a checkout whose .venv was just made."""
    add(project, "python3.11")
    assert make(project).returncode == 0
    assert calls(project) == FIRST
    (project / ".venv" / "mine").touch()
    return project


def age(file: Path, seconds: float) -> None:
    """Let a file be that old. Below 0, it is from the future."""
    then = file.stat().st_mtime - seconds
    os.utime(file, (then, then))


def add(project: Path, name: str, *, lacks: int = 0, old: int = 0) -> None:
    file = project / "bin" / name
    file.write_text(
        PYTHON.format(name=name, lacks=lacks, old=old, version=name.removeprefix("python") or "3.11")
    )
    file.chmod(0o755)


def environment(project: Path) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "ORDERPOST_PYTHON"))
    }
    return kept | {"PATH": str(project / "bin")}


def make(project: Path, target: str = "setup", **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "-s", target],
        cwd=project,
        env=environment(project) | variables,
        capture_output=True,
        text=True,
    )


def calls(project: Path) -> list[str]:
    """Return what was called since the last look."""
    file = project / "calls"
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return lines


class TestTheChoiceOfPython:
    def test_the_newest_comes_first(self, project: Path) -> None:
        for name in ("python3.12", "python3.11", "python3.13"):
            add(project, name)
        make(project)
        assert calls(project)[0] == "python3.13 makes .venv"

    def test_one_that_can_make_an_environment_comes_before_a_newer_one_that_cannot(
        self, project: Path
    ) -> None:
        add(project, "python3.13", lacks=1)
        add(project, "python3.11")
        make(project)
        assert calls(project)[0] == "python3.11 makes .venv"

    def test_one_that_cannot_leads_to_the_package_to_install(self, project: Path) -> None:
        add(project, "python3.12", lacks=1)
        done = make(project)
        assert done.returncode != 0 and calls(project) == []
        assert "Python 3.12 lacks its venv module." in done.stderr
        assert "apt-get install python3.12-venv" in done.stderr

    def test_the_operators_choice_wins(self, project: Path) -> None:
        add(project, "python3.13")
        add(project, "python3.11")
        make(project, ORDERPOST_PYTHON="python3.11")
        assert calls(project)[0] == "python3.11 makes .venv"

    def test_without_any_it_says_what_to_install(self, project: Path) -> None:
        add(project, "python3.11", old=1)
        done = make(project)
        assert done.returncode != 0 and "orderpost needs Python 3.11 or later" in done.stderr


class TestInstalling:
    def test_it_starts_nothing_if_the_environment_is_current(self, ready: Path) -> None:
        assert make(ready).returncode == 0
        assert calls(ready) == []

    def test_another_target_adds_its_packages(self, ready: Path) -> None:
        make(ready, "setup-bench")
        assert calls(ready) == ["uv installs requirements/bench.txt"]
        make(ready)
        make(ready, "setup-bench")
        assert calls(ready) == []

    def test_newer_requirements_are_installed_into_the_same_environment(self, ready: Path) -> None:
        age(ready / "requirements" / "dev.txt", -120)
        make(ready)
        assert calls(ready) == ["uv installs requirements/dev.txt"]
        assert (ready / ".venv" / "mine").exists()

    def test_a_newer_uv_is_installed(self, ready: Path) -> None:
        age(ready / "requirements" / "uv.txt", -120)
        make(ready)
        assert calls(ready) == FIRST[1:]

    def test_pip_installs_the_same_file_where_no_wheel_of_uv_exists(self, project: Path) -> None:
        add(project, "python3.11")
        (project / "no-wheel").touch()
        assert make(project).returncode == 0
        assert calls(project) == [*FIRST[:2], "pip installs requirements/dev.txt"]
        make(project)
        assert calls(project) == []

    def test_the_checkout_can_be_imported_from_everywhere(self, ready: Path) -> None:
        pth = ready / ".venv" / "lib" / "python3.11" / "site-packages" / "orderpost.pth"
        assert pth.read_text() == f"{ready}\n"

    def test_two_targets_at_once_make_one_environment(self, project: Path) -> None:
        add(project, "python3.11")
        (project / "slow").touch()
        both = [
            subprocess.Popen(
                ["make", "-s", target], cwd=project, env=environment(project), stderr=subprocess.PIPE
            )
            for target in ("setup", "setup-run")
        ]
        for process in both:
            process.communicate()
        assert [process.returncode for process in both] == [0, 0]
        called = calls(project)
        assert called.count("python3.11 makes .venv") == 1 and "two at once" not in called
        assert {"uv installs requirements/dev.txt", "uv installs requirements/run.txt"} < set(called)


class TestMakingItAgain:
    def test_it_starts_again_after_an_installation_that_failed(self, ready: Path) -> None:
        age(ready / "requirements" / "dev.txt", -120)
        (ready / "no-network").touch()
        assert make(ready).returncode != 0
        (ready / "no-network").unlink()
        calls(ready)
        make(ready)
        assert calls(ready) == FIRST

    def test_it_starts_again_after_the_checkout_was_moved(self, ready: Path) -> None:
        moved = ready.rename(ready.with_name("moved"))
        make(moved)
        assert calls(moved) == FIRST

    def test_it_starts_again_for_another_python(self, ready: Path) -> None:
        add(ready, "python3.12")
        make(ready)
        assert calls(ready) == []
        make(ready, ORDERPOST_PYTHON="python3.12")
        assert calls(ready) == ["python3.12 makes .venv", *FIRST[1:]]

    def test_it_starts_again_if_its_python_is_gone(self, ready: Path) -> None:
        (ready / "bin" / "python3.11").rename(ready / "bin" / "python3.12")
        make(ready)
        assert calls(ready)[1:] == FIRST[1:] and not (ready / ".venv" / "mine").exists()

    def test_it_keeps_an_environment_that_it_did_not_make(self, ready: Path) -> None:
        for file in (".origin", ".installed-dev"):
            (ready / ".venv" / file).unlink()
        make(ready)
        assert calls(ready) == ["uv installs requirements/dev.txt"]
        assert (ready / ".venv" / "mine").exists()

    def test_it_leaves_the_environment_of_another_checkout_as_it_is(self, ready: Path) -> None:
        other = ready.with_name("other")
        shutil.copytree(ready, other, symlinks=True, ignore=shutil.ignore_patterns(".venv"))
        (other / ".venv").symlink_to(ready / ".venv")
        for file in (other / "requirements").iterdir():
            age(file, -120)
        before = (ready / ".venv" / ".origin").read_text()
        assert make(other).returncode == 0
        assert calls(other) == calls(ready) == []
        assert (ready / ".venv" / ".origin").read_text() == before


@pytest.mark.drill
def test_pip_installs_what_uv_installs(tmp_path: Path) -> None:
    """Without a valid hash, pip refuses uv's wheel, as if there were none."""
    ask = "import importlib.metadata as m; print(*(f'{d.name}={d.version}' for d in m.distributions()))"
    lists = []
    for name in ("uv", "pip"):
        copy = tmp_path / name
        (copy / "local").mkdir(parents=True)
        shutil.copy(PROJECT / "Makefile", copy)
        shutil.copy(PROJECT / "local" / "setup.sh", copy / "local")
        shutil.copytree(PROJECT / "requirements", copy / "requirements")
        if name == "pip":
            (copy / "requirements" / "uv.txt").write_text(f"uv==0.0.1 --hash=sha256:{'0' * 64}\n")
        done = make_really(copy)
        assert ("pip tries" in done.stderr) == (name == "pip"), done.stderr
        python = copy / ".venv" / "bin" / "python"
        listed = subprocess.run([python, "-I", "-c", ask], capture_output=True, text=True, check=True)
        lists.append({word for word in listed.stdout.split() if not word.startswith("uv=")})
    assert lists[0] == lists[1] and len(lists[0]) > 90


def make_really(folder: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        ["make", "-s", "setup-run", f"ORDERPOST_PYTHON={sys.executable}"],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done
