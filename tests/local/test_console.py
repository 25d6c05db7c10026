"""The console, on files that grow and rotate as supervisord's do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from local.console import Console, LogFollower, readable


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


def test_it_loses_no_line_when_the_file_is_rotated(tmp_path: Path) -> None:
    log = tmp_path / "web.log"
    follower = LogFollower(log)
    append(log, "first\n")
    assert follower.lines() == ["first"]
    log.rename(tmp_path / "web.log.1")
    assert follower.lines() == []
    append(log, "first of the new file\n")
    assert follower.lines() == ["first of the new file"]
    append(log, "second\n")
    assert follower.lines() == ["second"]


def test_it_names_the_program_of_each_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(logs=tmp_path, names=["web", "worker"])
    append(tmp_path / "web.log", "hello\n")
    append(tmp_path / "worker.log", "ready\n")
    console.pump()
    assert capsys.readouterr().out == "web    | hello\nworker | ready\n"


def line(event: str, level: str = "info", **facts: object) -> str:
    """Return a line of a program's log."""
    common = {"level": level, "logger": "x", "timestamp": "2026-11-21T12:03:04.5Z", "correlation_id": "c"}
    return json.dumps({**facts, "event": event, **common})


def test_it_shows_warnings_and_each_sent_email_and_is_silent_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(logs=tmp_path, names=["worker"])
    about = {"recipient": "ann***@example.com", "event_type": "order.paid", "provider": "sendgrid"}
    for entry in (
        line("request", path="/readyz"),
        line("notification changed", was="", now="pending", **about),
        line("notification changed", was="processing", now="sent", **about),
        line("away", "warning"),
        line("detail", "debug"),
        "not JSON",
    ):
        append(tmp_path / "worker.log", entry + "\n")
    console.pump()
    assert capsys.readouterr().out.splitlines() == [
        "worker | 12:03:04 e-mail sent: order.paid to ann***@example.com by sendgrid",
        "worker | WARNING 12:03:04 away",
        "worker | not JSON",
    ]


def test_a_start_is_one_line_that_names_a_step_before_its_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(logs=tmp_path, names=["web"])
    with console.step("PostgreSQL"):
        assert capsys.readouterr().out == "PostgreSQL"
    with pytest.raises(ValueError, match="broken"), console.step("migrations"):
        raise ValueError("broken")
    assert re.fullmatch(r" \d+\.\d s, migrations", capsys.readouterr().out)


def test_a_line_is_readable_and_loses_no_fact() -> None:
    entry = line("request", path="/x", status=201, service="orderpost", version="1", role="web")
    assert readable(entry) == "12:03:04 request path=/x status=201"
    failed = line("failed", "error", exception="Traceback\n  ValueError: x", row=1)
    assert readable(failed) == "ERROR 12:03:04 failed row=1\nTraceback\n  ValueError: x"


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "plain", '{"event": 1}', "null"])
def test_what_is_no_line_of_ours_is_shown_as_it_is(text: str) -> None:
    assert readable(text) == text
