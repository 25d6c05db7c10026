"""What an earlier run left is found by its mark and ended; nothing else is touched."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from local import orphans

STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
POLITE = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"


class Processes:
    """Starts shells that carry a mark, or none."""

    def __init__(self) -> None:
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, script: str, *, var: Path | None) -> subprocess.Popen[bytes]:
        mark = {} if var is None else {orphans.MARKER: str(var)}
        process = subprocess.Popen(["bash", "-c", script], env=os.environ | mark, stdout=subprocess.PIPE)
        self.started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process


@pytest.fixture
def processes() -> Iterator[Processes]:
    ours = Processes()
    yield ours
    for process in ours.started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_it_ends_what_carries_this_runs_mark_and_nothing_else(processes: Processes, tmp_path: Path) -> None:
    var = tmp_path / "var"
    marked = processes.start(POLITE, var=var)
    other = processes.start(POLITE, var=tmp_path / "var2")
    unmarked = processes.start(POLITE, var=None)
    assert orphans.end(var=var, postgres_data=var / "postgres", grace_seconds=30) >= 1
    assert marked.wait(5) == 0
    assert (other.poll(), unmarked.poll()) == (None, None)
    assert orphans.find(var=var, postgres_data=var / "postgres") == {}


def test_it_kills_what_does_not_end_in_time(processes: Processes, tmp_path: Path) -> None:
    var = tmp_path / "var"
    stubborn = processes.start(STUBBORN, var=var)
    orphans.end(var=var, postgres_data=var / "postgres", grace_seconds=0.3)
    assert stubborn.wait(5) == -signal.SIGKILL


def test_a_stale_postmaster_pid_harms_nobody(processes: Processes, tmp_path: Path) -> None:
    innocent = processes.start(POLITE, var=None)
    data = tmp_path / "postgres"
    data.mkdir()
    (data / "postmaster.pid").write_text(f"{innocent.pid}\n{data}\n")
    assert orphans.end(var=tmp_path / "var", postgres_data=data, grace_seconds=1) == 0
    assert innocent.poll() is None
