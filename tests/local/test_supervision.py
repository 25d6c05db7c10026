"""supervisord with small programs: gates, restarts, failures, long logs, and their end when it is killed.

A part of the background process that fails starts again, and the others continue.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management.base import CommandError

from local import background, supervision
from local.machine import LocalRunFailed, guarded, is_alive
from local.supervision import Program, StartBarrier, Supervisor
from runtime.process.backoff import NO_JITTER, RetryPolicy
from tests.kit.waiting import PATIENCE, until


@pytest.fixture
def var(tmp_path: Path) -> Path:
    """Return a directory for logs, as in a checkout whose path has a percent sign."""
    var = tmp_path / "100% mine"
    for name in ("log", "run"):
        (var / name).mkdir(parents=True)
    return var


@pytest.fixture
def supervisor(var: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(var=var)
    yield supervisor
    supervisor.stop()


def program(name: str, script: str, *, gate: StartBarrier | None = None) -> Program:
    """Return a program that runs a script of the shell, once its gate is open."""
    shell = ["sh", "-c", script]
    command = guarded(gate.before(*shell) if gate else shell)
    return Program(name=name, command=command, environment={"WORD": "100%"})  # not an expansion


def pid_in(log: Path) -> int:
    """Wait until a program has written its process id to its log, and return the last one."""
    return int(until(lambda: re.findall(r"^(\d+)$", log.read_text() if log.exists() else "", re.M))[-1])


def test_a_program_waits_for_its_gate(supervisor: Supervisor, var: Path) -> None:
    gate = StartBarrier(var / "run" / "gate")
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
    parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    os.kill(int(parent), signal.SIGKILL)
    until(lambda: not is_alive(pid))
    until(supervisor.has_ended)
    with pytest.raises(LocalRunFailed, match="supervisord has exited"):
        supervisor.check()


def test_a_long_log_is_moved_aside_and_the_oldest_goes_while_the_program_writes(
    supervisor: Supervisor, var: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "LONGEST_LOG", 5)
    logs = var / "log"
    (logs / "short.log").write_text("12345")
    supervisor.start([program("web", "while :; do echo a line; sleep 0.01; done")], environment=os.environ)
    for _ in range(supervision.KEPT_LOGS + 2):
        until(lambda: (logs / "web.log").exists() and (logs / "web.log").stat().st_size > 5)
        supervisor.rotate_logs()
    until(lambda: (logs / "web.log").exists())
    kept = {f"web.log.{number}" for number in range(1, supervision.KEPT_LOGS + 1)}
    assert {log.name for log in logs.glob("web.log*")} == {"web.log", *kept}
    assert all((logs / name).read_text().startswith("a line\n") for name in kept)
    assert (logs / "short.log").read_text() == "12345"


class Stop(threading.Event):
    """Keeps the waits, takes no time for them, and is set after `most`."""

    def __init__(self, *, most: int) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._most = most

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        if len(self.waits) >= self._most:
            self.set()
        return self.is_set()


@pytest.mark.parametrize(
    "error", [None, ValueError("poison"), CommandError("not the owner"), SystemExit(1), MemoryError()]
)
def test_a_part_starts_again_however_it_ends_and_waits_longer_each_time(error):
    calls = []

    def run() -> None:
        calls.append(1)
        if error is not None:
            raise error

    stopped = Stop(most=8)
    background.keep_running("relay", run=run, stopped=stopped)
    assert len(calls) == 8
    assert stopped.waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_part_that_ran_for_long_starts_again_soon(monkeypatch):
    monkeypatch.setattr(background, "STEADY_SECONDS", -1.0)
    stopped = Stop(most=4)
    background.keep_running("relay", run=lambda: None, stopped=stopped)
    assert max(stopped.waits) <= 1


def test_a_part_that_fails_leaves_the_others_alone(monkeypatch):
    monkeypatch.setattr(background, "RESTARTS", RetryPolicy(0.001, 60, jitter=NO_JITTER))
    stopped, fourth, calls = threading.Event(), threading.Event(), {"bad": 0, "good": 0}

    def bad() -> None:
        calls["bad"] += 1
        if calls["bad"] > 3:
            fourth.set()
            stopped.wait(PATIENCE)
            return
        raise ValueError("poison")

    def good() -> None:
        calls["good"] += 1
        stopped.wait(PATIENCE)

    parts = [
        threading.Thread(target=background.keep_running, args=[name], kwargs={"run": run, "stopped": stopped})
        for name, run in (("bad", bad), ("good", good))
    ]
    for part in parts:
        part.start()
    assert fourth.wait(PATIENCE)
    stopped.set()
    for part in parts:
        part.join(PATIENCE)
    assert calls == {"bad": 4, "good": 1}
