"""supervisord with small programs: gates, restarts, failures, and the end of all when it is killed."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.machine import LocalRunFailed, guarded, is_alive
from local.supervision import Gate, Program, Supervisor
from tests.kit.waiting import until


@pytest.fixture
def var(tmp_path: Path) -> Path:
    for name in ("log", "run"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.fixture
def supervisor(var: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(var=var)
    yield supervisor
    supervisor.stop()


def program(name: str, script: str, *, gate: Gate | None = None) -> Program:
    """Return a program that runs a script of the shell, once its gate is open."""
    shell = ["sh", "-c", script]
    command = guarded(gate.before(*shell) if gate else shell)
    return Program(name=name, command=command, environment={"WORD": "100%"})  # not an expansion


def pid_in(log: Path) -> int:
    """Wait until a program has written its process id to its log, and return the last one."""
    return int(until(lambda: re.findall(r"^(\d+)$", log.read_text() if log.exists() else "", re.M))[-1])


def test_a_program_waits_for_its_gate(supervisor: Supervisor, var: Path) -> None:
    gate = Gate(var / "run" / "gate")
    first = program("first", "echo $$; exec sleep 600")
    second = program("second", "echo opened $WORD; exec sleep 600", gate=gate)
    supervisor.start([second], [first], environment=os.environ)
    pid_in(var / "log" / "first.log")  # the second was started before it
    log = var / "log" / "second.log"
    assert log.read_text() == ""
    gate.open()
    until(lambda: log.read_text() == "opened 100%\n")
    supervisor.check()


def test_a_killed_program_is_started_again_and_both_are_told(supervisor: Supervisor, var: Path) -> None:
    supervisor.start([program("first", "echo $$; exec sleep 600")], environment=os.environ)
    log = var / "log" / "first.log"
    pid = pid_in(log)
    os.kill(pid, signal.SIGKILL)
    until(lambda: pid_in(log) != pid)
    told: list[str] = []

    def has_told_three() -> bool:
        told.extend(supervisor.news())
        return len(told) >= 3

    until(has_told_three)
    assert [re.sub(r"\d+", "N", line) for line in told] == [
        "spawned: 'first' with pid N",
        "exited: first (terminated by SIGKILL; not expected)",
        "spawned: 'first' with pid N",
    ]


def test_a_start_fails_with_the_end_of_the_log_of_a_program_that_exits(supervisor: Supervisor) -> None:
    supervisor.start([program("first", "echo the reason; exit 3")], environment=os.environ)
    with pytest.raises(
        LocalRunFailed, match=r"(?s)exited: first \(exit status 3.*first\.log.*the reason.*`make clean`"
    ):
        until(supervisor.check)


def test_no_program_is_left_when_supervisord_is_killed(supervisor: Supervisor, var: Path) -> None:
    deaf = program("first", "trap '' TERM INT HUP; echo $$; while :; do sleep 0.1; done")
    supervisor.start([deaf], environment=os.environ)
    pid = pid_in(var / "log" / "first.log")
    assert supervisor._process is not None
    supervisor._process.kill()
    until(lambda: not is_alive(pid))
    until(supervisor.has_ended)
    with pytest.raises(LocalRunFailed, match="supervisord has exited"):
        supervisor.check()
