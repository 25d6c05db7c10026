"""The console, on files that grow and rotate as supervisord's do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from local.console import BURST, Console, LogFollower, readable


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


def line(event: str, level: str = "info", **facts: object) -> str:
    """Return a line of a program's log."""
    common = {"level": level, "logger": "x", "timestamp": "2026-11-21T12:03:04.5Z", "correlation_id": "c"}
    return json.dumps({**facts, "event": event, **common})


def test_it_shows_every_warning_and_of_other_lines_only_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(logs=tmp_path, names=["web"])
    for number in range(500):
        append(tmp_path / "web.log", line("request", path=f"/{number}") + "\n")
    for number in range(50):
        append(tmp_path / "web.log", line(f"away {number}", "warning") + "\n")
    append(tmp_path / "web.log", "not JSON\n")
    console.pump()
    console.close()
    shown = capsys.readouterr().out.splitlines()
    assert sum("request" in text for text in shown) == BURST
    assert sum("WARNING 12:03:04 away" in text for text in shown) == 50
    assert shown[-1] == "web | not JSON"


def test_it_says_how_many_lines_it_left_out_and_where_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(logs=tmp_path, names=["web"])
    append(tmp_path / "web.log", "".join(line("request") + "\n" for _ in range(BURST + 7)))
    console.pump()
    console.pump()
    console.close()
    assert f"… and 7 more lines in {tmp_path}" in capsys.readouterr().out


def test_a_line_is_readable_and_loses_no_fact() -> None:
    entry = line("request", path="/x", status=201, service="orderpost", version="1", role="web")
    assert readable(entry) == "12:03:04 request path=/x status=201"
    failed = line("failed", "error", exception="Traceback\n  ValueError: x", row=1)
    assert readable(failed) == "ERROR 12:03:04 failed row=1\nTraceback\n  ValueError: x"


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "plain", '{"event": 1}', "null"])
def test_what_is_no_line_of_ours_is_shown_as_it_is(text: str) -> None:
    assert readable(text) == text
