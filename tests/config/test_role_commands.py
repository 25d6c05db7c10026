"""`orderpost ROLE`, the image's entry: it becomes the role's process, or a command of manage.py."""

from __future__ import annotations

import os
import subprocess

import pytest

from local.machine import PROJECT


def orderpost(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROJECT / "config" / "roles.py"), *arguments],
        cwd="/",
        env=os.environ | {"PATH": f"{PROJECT}/.venv/bin:{os.environ['PATH']}"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_command_of_manage_py_is_run_with_its_arguments() -> None:
    done = orderpost("health", "relay", HEALTH_DIR="/nonexistent")
    assert done.returncode == 1 and done.stderr.startswith("relay: /nonexistent/relay is not there")


def test_a_whole_command_is_run_as_it_stands_because_release_0_1_0_was_deployed_so() -> None:
    assert orderpost("python", "-c", "print('as it stands')").stdout == "as it stands\n"


@pytest.mark.parametrize("given", ["0", "two", "1.5"])
def test_a_bad_number_stops_the_start_with_a_sentence(given: str) -> None:
    done = orderpost("web", WEB_THREADS=given)
    assert done.returncode == 1
    assert done.stderr == f"WEB_THREADS must be a whole number from 1, and is '{given}'.\n"


def test_a_role_takes_more_arguments() -> None:
    done = orderpost("web", "--help", PYTHONPATH=str(PROJECT))
    assert done.returncode == 0 and "python -m config.web" in done.stdout, done.stderr
