"""The console, on files that grow and rotate as supervisord's do."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.local.console import Console, LogFollower


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_it_shows_only_what_comes_after_it_started(tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    append(log, "an earlier run\n")
    follower = LogFollower(log)
    append(log, "one\ntwo\nhal")
    assert follower.lines() == ["one", "two"]
    append(log, "f\n")
    assert follower.lines() == ["half"]
    follower.close()


def test_it_loses_no_line_when_the_file_is_rotated(tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    follower = LogFollower(log)
    append(log, "first\n")
    assert follower.lines() == ["first"]
    append(log, "last of the old file\n")
    log.rename(tmp_path / "web.log.1")
    append(log, "first of the new file\n")
    assert follower.lines() == ["last of the old file", "first of the new file"]
    append(log, "second\n")
    assert follower.lines() == ["second"]
    follower.close()


def test_it_names_the_program_of_each_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(logs=tmp_path, names=["web", "worker"])
    append(tmp_path / "web.log", "hello\n")
    append(tmp_path / "worker.log", "ready\n")
    console.pump()
    console.close()
    assert capsys.readouterr().out == "web    | hello\nworker | ready\n"
