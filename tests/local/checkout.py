"""Wait for states and inspect processes, for the tests of the local run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from local import environment
from local.machine import PROJECT, is_alive
from tests.kit.waiting import until

NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "var", "__pycache__", ".*_cache", ".hypothesis")


def without_settings(**changes: str) -> dict[str, str]:
    """Return this environment without the settings of the tests' plugin."""
    ours = (*environment.NAMES, "LOG_FORMAT")
    return {name: value for name, value in os.environ.items() if name not in ours} | changes


class Checkout:
    """A copy of the project in which `python -m local` can run next to other runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "checkout"
        shutil.copytree(PROJECT, self.directory, ignore=NOT_COPIED)
        self.output = directory / "output"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start the local run and return at once."""
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "local"],
                cwd=self.directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # by which `processes` finds the run's programs
            )
        return self.process

    def wait_until_up(self) -> None:
        """Wait until the run prints its addresses. Fail with its output if it exits."""
        # The run gives up automatically after a time. A shorter limit here would only measure the load.
        until(lambda: "is up after" in self.said() or self.has_ended(), seconds=600)
        assert not self.has_ended(), self.said()

    def said(self) -> str:
        return self.output.read_text(errors="replace")

    def has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def processes(self) -> list[int]:
        """Return every living process of the run except its first one.

        It has the run's session, or as a child of PostgreSQL its directory.
        """
        assert self.process is not None
        pids = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.process.pid and is_alive(int(entry.name)):
                with suppress(OSError):  # it has exited, or belongs to another user
                    in_session = os.getsid(int(entry.name)) == self.process.pid
                    if in_session or (entry / "cwd").readlink().is_relative_to(self.directory):
                        pids.append(int(entry.name))
        return pids

    def pid_of(self, *words: str) -> int:
        """Return the process of the run with these words in its command, and not one that it forked."""
        parents = {}
        for pid in self.processes():
            with suppress(OSError):  # it has exited since: PostgreSQL's workers come and go
                command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                if all(word in command for word in words):
                    # Behind the name in brackets: the state and the parent.
                    parents[pid] = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        for pid, parent in parents.items():
            if parent not in parents:
                return pid
        raise LookupError(words)

    def clean_up(self) -> None:
        """Stop the processes that a failed test has left."""
        if self.process is not None:
            for pid in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.kill()
            self.process.wait()
