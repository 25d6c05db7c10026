"""Tell a container's probe whether a process's loops still run.

Each loop calls `beat`, a thread writes a file every few seconds, and `manage.py health ROLE` reads the files
of the role. None of them asks another server: an outage of the database or of a broker makes no process
unhealthy. This module imports only the standard library, since each probe starts a new Python.

A file is named by its process's role, number and start, because the folder outlives a container, and numbers
come again. If web lacks a process, the file of a dead one counts in its place. Its deadline is up to a minute
ahead, which gives the server time to replace the process before the probe fails.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

#: After so long without a beat, a loop counts as hanging.
WITHIN_SECONDS = 60.0
WRITE_SECONDS = 5.0  # seconds between two writes of the file
DEFAULT_DIRECTORY = Path(__file__).resolve().parent.parent.parent / "var" / "run" / "health"
#: The role that has several processes on a machine.
WEB = "web"


class Health:
    """The loops of one role. Times are by the machine's monotonic clock, which all its processes share."""

    def __init__(self, *, role: str) -> None:
        self.role, self.process = role, os.getpid()
        self.file = folder() / f"{role}.{self.process}.{_start_of(self.process)}"
        self._loops: dict[str, tuple[float, float]] = {}  # the time of a loop's beat, and its next deadline
        self._lock = threading.Lock()

    def beat(self, loop: str, *, within_seconds: float) -> None:
        now = time.monotonic()
        self._loops[loop] = now, now + within_seconds

    def end(self, loop: str) -> None:
        self._loops.pop(loop, None)

    def forget(self) -> None:
        """Forget every loop. The role's command starts again."""
        self._loops.clear()

    def write(self) -> None:
        """Write the earliest deadline of all loops, the time of the oldest beat, and `_expected`."""
        now = time.monotonic()
        with self._lock, contextlib.suppress(OSError):  # such as a full disk
            loops = [*self._loops.values(), (now, now + WITHIN_SECONDS)]
            text = f"{min(until for _, until in loops):.3f} {min(at for at, _ in loops):.3f} {_expected}\n"
            self.file.parent.mkdir(parents=True, exist_ok=True)
            new = self.file.with_name(f".{self.file.name}")
            new.write_text(text)
            new.replace(self.file)

    def is_late(self) -> bool:
        """Return whether a loop has missed its deadline."""
        now = time.monotonic()
        return any(until < now for _, until in [*self._loops.values()])

    def keep_writing(self) -> None:
        """Write every few seconds until the process exits."""
        while True:
            self.write()
            time.sleep(WRITE_SECONDS)


#: The number of processes of this one's role.
_expected = 1
_begun: list[Health] = []
_of_thread: contextvars.ContextVar[Health | None] = contextvars.ContextVar("health", default=None)


def folder() -> Path:
    return Path(os.environ.get("HEALTH_DIR") or DEFAULT_DIRECTORY)


def _start_of(process: int | str) -> str:
    """Return when a process started, in clock ticks since the boot, or an empty text if it is dead."""
    try:
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else fields[18]


class HealthFile(NamedTuple):
    """The last entry of a process in its file. `expected` is how many processes the role should have."""

    is_alive: bool
    until: float
    at: float
    expected: int
    path: Path


def _files_of(role: str) -> list[HealthFile]:
    """Return the files that count, those of living processes first. Remove those of replaced ones."""
    files = []
    for path in folder().glob(f"{role}.*.*"):
        with contextlib.suppress(OSError, ValueError):
            _, process, start = path.name.split(".")
            until, at, expected = path.read_text().split()
            if float(at) < time.monotonic() + 1:  # else it was written before the machine's last start
                is_alive = _start_of(process) == start
                files.append(HealthFile(is_alive, float(until), float(at), int(expected), path))
    files.sort(reverse=True)  # behind the living ones, those that died last
    living = [file for file in files if file.is_alive]
    count = max(1, len(living), *(file.expected for file in living))
    for file in files[count:]:
        with contextlib.suppress(OSError):
            file.path.unlink()
    return files[:count]


def expect_workers(count: int) -> None:
    """Tell this process's children how many they are. Web's server calls this before it forks them."""
    global _expected
    _expected = count


def begin(role: str) -> None:
    """Begin to write the file of `role`. Call this after a fork, in the thread of the role's loop.

    In a process of several roles, each role's thread calls this. The beats of other threads count for the
    first role. A role that begins again in its process keeps its file and forgets its loops.
    """
    for health in _begun:
        if health.role == role and health.process == os.getpid():
            health.forget()
            _of_thread.set(health)
            return
    health = Health(role=role)
    _of_thread.set(health)
    _begun.append(health)
    health.write()  # a scrape may come before the thread's first write
    _files_of(role)  # where no probe runs, nobody else removes those of former processes
    threading.Thread(target=health.keep_writing, name=f"health-{role}", daemon=True).start()


def roles() -> list[str]:
    """Return the roles of this process."""
    return [health.role for health in _begun]


def role() -> str:
    """Return the role of this thread or, if it has none, of its process. An empty text means none."""
    return health.role if (health := _mine()) else ""


def _mine() -> Health | None:
    return _of_thread.get() or (_begun[0] if _begun else None)


def beat(loop: str = "loop", *, within_seconds: float = WITHIN_SECONDS) -> None:
    """Report that a loop runs and will report again `within_seconds`."""
    if (health := _mine()) is not None:
        health.beat(loop, within_seconds=within_seconds)


def end(loop: str = "loop") -> None:
    """Report that a loop has finished, or that it will not beat for a while."""
    if (health := _mine()) is not None:
        health.end(loop)


def is_late(role: str) -> bool:
    """Return whether a loop of a role of this process has missed its deadline."""
    return any(health.is_late() for health in _begun if health.role == role)


def wait(stopped: threading.Event, seconds: float) -> None:
    """Wait as `stopped.wait` does, with a beat every few seconds."""
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        beat()
        if stopped.wait(min(left, WRITE_SECONDS)):
            return


def quiet_seconds(role: str) -> float | None:
    """Return the seconds since the oldest beat of a role's loops, in all its files, or None."""
    beats = [file.at for file in _files_of(role)]
    return max(0.0, time.monotonic() - min(beats)) if beats else None


def describe_problems(role: str) -> str:
    """Return what is wrong with a role's processes, a line for each, or an empty text."""
    files, now = _files_of(role), time.monotonic()
    if not any(file.is_alive for file in files):
        return f"{role}: no process lives, or it has another HEALTH_DIR than {folder()}"
    problems = [
        f"{file.path.name}: its loop hangs (no beat for {now - file.at:.0f} s), or the process is dead"
        for file in files
        if file.until < now
    ]
    missing = max(file.expected for file in files if file.is_alive) - len(files)
    problems += [f"{role}: the process has not begun"] * missing
    return "\n".join(problems)


def begun() -> list[str]:
    """Return the roles that have a file in HEALTH_DIR, which in a container are its own."""
    return sorted({path.name.partition(".")[0] for path in folder().glob("[!.]*.*.*")})


def main(arguments: list[str]) -> int:
    """Print what is wrong with each of the roles, by default all that have begun.

    Return 1 if anything is wrong or no role has begun, otherwise 0.
    """
    named = arguments or begun()
    troubles = [text for role in named if (text := describe_problems(role))]
    if not named:
        troubles = [f"no process has begun, or it has another HEALTH_DIR than {folder()}"]
    print("\n".join(troubles) or "running", file=sys.stderr if troubles else sys.stdout)
    return 1 if troubles else 0
