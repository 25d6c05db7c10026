"""`orderpost ROLE`, the image's entry: it becomes the role's process, or a command of manage.py."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from config import roles
from local.machine import PROJECT
from tests.kit.waiting import PATIENCE, replace_time
from tests.kit.words import health


def orderpost(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROJECT / "config" / "roles.py"), *arguments],
        cwd="/",
        env=os.environ | {"PATH": f"{PROJECT}/.venv/bin:{os.environ['PATH']}"} | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def test_a_command_of_manage_py_is_run_with_its_arguments() -> None:
    done = orderpost("health", "relay", HEALTH_DIR="/nonexistent")
    assert done.returncode == 1 and done.stderr.startswith(
        "relay: no process lives, or it has another HEALTH_DIR than /nonexistent"
    )


@pytest.mark.parametrize("number", ["0", "two", "1.5"])
def test_a_bad_number_stops_the_start_with_a_sentence(number: str) -> None:
    done = orderpost("web", WEB_THREADS=number)
    assert done.returncode == 1
    assert done.stderr == f"WEB_THREADS must be a whole number from 1, and is '{number}'.\n"


def test_a_role_takes_more_arguments() -> None:
    done = orderpost("web", "--help", PYTHONPATH=str(PROJECT))
    assert done.returncode == 0 and "python -m config.web" in done.stdout, done.stderr


class Started(Exception):
    """Raised in place of the role's process."""


@pytest.mark.parametrize(
    ("word", "waits"),
    [("on", True), ("true", True), ("1", True), ("Yes", True), ("off", False), ("false", False), ("", False)],
)
def test_a_role_waits_for_the_migrations_by_each_word_of_a_switch(
    word: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[str] = []

    def execv(path: str, command: list[str]) -> None:
        raise Started

    monkeypatch.setattr(os, "chdir", lambda path: None)
    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(roles, "wait_for_migrations", waited.append)
    monkeypatch.setenv("WAIT_FOR_MIGRATIONS", word)
    with pytest.raises(Started):
        roles.main(["relay"])
    assert waited == (["relay"] if waits else [])


def test_a_role_that_waits_for_the_migrations_writes_each_reason_once_and_is_healthy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEALTH_DIR", str(tmp_path))
    away, missing, none = (1, "Traceback\nOperationalError: connection timeout expired\n"), (1, ""), (0, "")
    rounds = iter([away, away, away, missing, missing, away, none])
    healthy: list[bool] = []

    def run(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        code, error = next(rounds)
        return subprocess.CompletedProcess([], code, "", error)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    replace_time(
        monkeypatch, roles, sleep=lambda seconds: healthy.append(health.describe_problems("relay") == "")
    )
    roles.wait_for_migrations("relay")
    silent = "orderpost: waiting for the migrations: OperationalError: connection timeout expired\n"
    unapplied = "orderpost: waiting for the migrations: some are not applied\n"
    assert capsys.readouterr().err == silent + unapplied + silent
    assert healthy == [True] * 6
    assert health.begun() == [], "the role writes its own file next"


def test_another_word_for_a_switch_stops_the_start_with_a_sentence() -> None:
    done = orderpost("relay", WAIT_FOR_MIGRATIONS="please")
    assert done.returncode == 1
    assert (
        done.stderr
        == "WAIT_FOR_MIGRATIONS must be on or off (true or false, 1 or 0, yes or no), not 'please'.\n"
    )


def test_a_switch_is_off_unless_it_says_on() -> None:
    assert roles.switch_from("KAFKA", environ={"KAFKA": "TRUE"})
    assert not roles.switch_from("KAFKA", environ={"KAFKA": "no"})
    assert not roles.switch_from("KAFKA", environ={})
    with pytest.raises(SystemExit, match="KAFKA must be on or off"):
        roles.switch_from("KAFKA", environ={"KAFKA": "2"})
