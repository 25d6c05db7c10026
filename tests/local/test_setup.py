"""local/setup.py makes its own .venv again for another Python, and deletes nobody else's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from local import setup


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set up a project with an empty lock file. Nothing is installed."""
    folder = tmp_path / ".venv"
    (tmp_path / "requirements-dev.lock").write_text("# empty\n")
    monkeypatch.setattr(setup, "PROJECT", tmp_path)
    monkeypatch.setattr(setup, "VENV", folder)
    monkeypatch.setattr(setup, "STAMP", folder / "installed")
    monkeypatch.setattr(setup, "is_runnable", lambda python: True)
    monkeypatch.setattr(setup, "install", lambda lock: None)
    monkeypatch.setattr(setup, "make_venv", lambda: folder.mkdir(exist_ok=True))
    monkeypatch.setattr(setup, "site_packages", lambda: folder)
    monkeypatch.setattr(sys, "argv", ["setup.py"])
    setup.main()
    (folder / "mine").touch()
    return folder


def test_it_does_nothing_if_the_environment_is_current(venv: Path) -> None:
    setup.main()
    assert (venv / "mine").exists()


def test_it_makes_the_environment_again_for_another_python(
    venv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "version", "3.99")
    setup.main()
    assert not (venv / "mine").exists()
    assert (venv / "installed").read_text().startswith("3.99 in ")


def test_it_deletes_no_environment_that_it_did_not_make(venv: Path) -> None:
    (venv / "installed").unlink()
    setup.main()
    assert (venv / "mine").exists()


def test_it_leaves_the_environment_of_another_checkout_as_it_is(
    venv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "copy"
    other.mkdir()
    (other / ".venv").symlink_to(venv)
    (other / "requirements-dev.lock").write_text("# empty\n")
    monkeypatch.setattr(setup, "PROJECT", other)
    monkeypatch.setattr(setup, "VENV", other / ".venv")
    monkeypatch.setattr(setup, "STAMP", other / ".venv" / "installed")
    monkeypatch.setattr(setup, "install", lambda lock: pytest.fail("it installs packages"))
    before = (venv / "installed").read_text()
    setup.main()
    assert (venv / "installed").read_text() == before and (venv / "mine").exists()


def test_packages_are_where_the_environments_own_python_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else may have made it with another Python."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho /lib/python3.99/site-packages\n")
    python.chmod(0o755)
    monkeypatch.setattr(setup, "VENV", tmp_path)
    assert setup.site_packages() == Path("/lib/python3.99/site-packages")
