"""Guarded programs, on real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from local.machine import Account, account_for_postgres, guarded, is_alive
from tests.kit.waiting import until

AS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not AS_ROOT, reason="only root can become someone else")
needs_namespace = pytest.mark.skipif(
    not AS_ROOT or account_for_postgres() != "namespace", reason="root has no user namespaces here"
)
ACCOUNTS = [
    "self",
    pytest.param("namespace", marks=needs_namespace),
    pytest.param("nobody", marks=needs_root),
]

# A parent that starts a guarded program, says its process id, and waits for ever.
PARENT = """
import subprocess, sys
from local.machine import guarded
child = subprocess.Popen(guarded(["sleep", "600"], account=sys.argv[1]))
while True:
    with open(f"/proc/{child.pid}/comm") as comm:
        if comm.read().strip() == "sleep":
            break
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.parametrize("account", ACCOUNTS)
def test_it_ends_the_program_when_the_parent_is_killed(account: Account) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, account], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_alive(child)
        parent.kill()
    until(lambda: not is_alive(child))


@pytest.mark.parametrize("account", ACCOUNTS[1:])
def test_it_takes_off_roots_identity(account: Account) -> None:
    command = guarded(["id", "-u"], account=account)
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "65534\n"


def test_it_leaves_the_cpu_to_others_if_told_to() -> None:
    command = guarded(["nice"], nice=3)
    assert subprocess.check_output(command, text=True) == f"{os.nice(0) + 3}\n"


def test_it_sends_the_signal_that_was_asked_for(tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    program = f"trap 'echo INT > {heard}; exit' INT; echo ready; while :; do sleep 0.05; done"
    parent = f"""
import signal, subprocess
from local.machine import guarded
signal.signal(signal.SIGINT, signal.SIG_DFL)  # a test run in the background ignores it, and bash then too
subprocess.run(guarded(["bash", "-c", {program!r}], death_signal=signal.SIGINT))
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.kill()
    until(heard.exists)


def test_it_names_a_program_that_cannot_be_started() -> None:
    done = subprocess.run(guarded(["/no/such"]), capture_output=True, text=True)
    assert done.returncode != 0
    assert "/no/such" in done.stderr


def test_it_passes_arguments_on() -> None:
    command = guarded(["echo", "--pdeathsig", "a b"])
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "--pdeathsig a b\n"
