"""Waiting and looking at processes, for the tests of the local run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from config.local import environment, orphans
from config.local.machine import PROJECT

NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "var", "__pycache__", ".*_cache", ".hypothesis")


def eventually(truth: Callable[[], object], *, seconds: float = 20.0) -> None:
    """This function will return when `truth` holds, and fail the test if it never does."""
    deadline = time.monotonic() + seconds
    while not truth():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """This function will say whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def without_settings(**changes: str) -> dict[str, str]:
    """This function will return this environment without what the tests' plugin has set."""
    ours = (*environment.NAMES, "LOG_FORMAT")
    return {name: value for name, value in os.environ.items() if name not in ours} | changes


class Checkout:
    """A copy of the project in which `python -m config.local` can run beside anyone else's."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "checkout"
        shutil.copytree(PROJECT, self.directory, ignore=NOT_COPIED)
        self.output = directory / "output"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """This function will start the local run and return at once."""
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "config.local"],
                cwd=self.directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return self.process

    def wait_until_up(self) -> None:
        """This function will return when the run says where everything is; or fail with what it said."""
        eventually(lambda: "is up after" in self.said() or self.has_ended(), seconds=90)
        assert not self.has_ended(), self.said()

    def said(self) -> str:
        """This function will return everything that the run has printed."""
        return self.output.read_text(errors="replace")

    def has_ended(self) -> bool:
        """This function will say whether the run itself is gone."""
        return self.process is not None and self.process.poll() is not None

    def processes(self) -> list[int]:
        """This function will list every living process of the run, but for its own first one."""
        var = self.directory / "var"
        return list(orphans.find(var=var, postgres_data=var / "postgres"))

    def pid_of(self, *words: str) -> int:
        """This function will return the oldest process of the run with these words in its command."""
        for pid in sorted(self.processes()):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            if all(word in command for word in words):
                return pid
        raise LookupError(words)

    def clean_up(self) -> None:
        """This function will end whatever a failed test has left."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        var = self.directory / "var"
        orphans.end(var=var, postgres_data=var / "postgres", grace=10)
