"""Tell a container's probe whether a process's loops still run.

Each loop calls `beat`, a thread writes a file every few seconds, and `manage.py health ROLE` reads the file.
None of them asks another server: an outage of the database or of a broker makes no process unhealthy. This
module imports only the standard library, since each probe starts a new Python.

The worker processes of web are of one role, and each of them has a numbered file: `web-0`, `web-1`. A worker
takes the first file that no living process holds, and the successor of a killed worker continues its file.
The file's deadline is a minute ahead, which gives the server time to replace the worker before the probe
fails.
"""

from __future__ import annotations

import contextlib
import contextvars
import fcntl
import itertools
import os
import re
import sys
import threading
import time
from pathlib import Path

#: After so long without a beat, a loop counts as hanging.
WITHIN_SECONDS = 60.0
WRITE_SECONDS = 5.0  # seconds between two writes of the file
#: The longest time to a loop's next beat. A file with a later time is from before a reboot.
LONGEST_SECONDS = 7200.0
DEFAULT_DIRECTORY = Path(__file__).resolve().parent.parent.parent / "var" / "run" / "health"


class Health:
    """The loops of one role. Times are by the machine's monotonic clock, which all its processes share."""

    def __init__(self, *, role: str, file: Path) -> None:
        self.role, self.file = role, file
        self.process = os.getpid()
        self._loops: dict[str, tuple[float, float]] = {}  # the time of a loop's beat, and its next deadline
        self._lock = threading.Lock()

    def beat(self, loop: str, *, within_seconds: float) -> None:
        now = time.monotonic()
        self._loops[loop] = now, now + min(within_seconds, LONGEST_SECONDS)

    def end(self, loop: str) -> None:
        self._loops.pop(loop, None)

    def forget(self) -> None:
        """Forget every loop. The role's command starts again."""
        self._loops.clear()

    def write(self) -> None:
        """Write the earliest deadline of all loops, and the time of the oldest beat."""
        now = time.monotonic()
        with self._lock:
            loops = [*self._loops.values(), (now, now + WITHIN_SECONDS)]
            text = f"{min(until for _, until in loops):.3f} {min(at for at, _ in loops):.3f}\n"
            new = self.file.with_suffix(f".{os.getpid()}")
            new.write_text(text)
            new.replace(self.file)

    def is_late(self) -> bool:
        """Return whether a loop has missed its deadline."""
        now = time.monotonic()
        return any(until < now for _, until in [*self._loops.values()])

    def keep_writing(self) -> None:
        """Write every few seconds until the process exits. Ignore an `OSError`, such as a full disk."""
        while True:
            with contextlib.suppress(OSError):
                self.write()
            time.sleep(WRITE_SECONDS)


#: The role that has several processes on a machine, each with a numbered file.
WEB = "web"

_begun: list[Health] = []
_NUMBERED = re.compile(r"(.+)-\d+")
_of_thread: contextvars.ContextVar[Health | None] = contextvars.ContextVar("health", default=None)


def file_of(role: str) -> Path:
    """Return the file of a role, in HEALTH_DIR."""
    return Path(os.environ.get("HEALTH_DIR") or DEFAULT_DIRECTORY) / role


def files_of(role: str) -> list[Path]:
    """Return the files of a role: its numbered ones, or else its only one."""
    return [file for name, file in _numbered() if name == role] or [file_of(role)]


def _numbered() -> list[tuple[str, Path]]:
    files = sorted(file_of("").glob("*-*"))
    return [(match[1], file) for file in files if (match := _NUMBERED.fullmatch(file.name))]


def _hold(file: Path) -> int | None:
    """Lock a numbered file until this process exits, or closes the returned descriptor.

    Return None if another process has the lock. `write` replaces the file, which is why the lock has its own.
    """
    lock = os.open(file.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock


def expect_workers(count: int) -> None:
    """Make the files of web's workers. The server calls this before it starts the workers.

    A file stays empty until its worker begins, and the probe fails until then. The files of dead workers are
    deleted: if the number of workers was lowered, they would fail the probe for ever. Ignore an `OSError`.
    """
    with contextlib.suppress(OSError):
        file_of("").mkdir(parents=True, exist_ok=True)
        expected = {file_of(f"{WEB}-{number}") for number in range(count)}
        for file in sorted({*expected, *(file for name, file in _numbered() if name == WEB)}):
            if (lock := _hold(file)) is None:
                continue  # a worker of another server writes it
            if file in expected:
                file.write_text("")
            else:
                file.unlink()
            os.close(lock)


def _take_file() -> Path:
    """Return the first file of web's workers that no living worker holds, and hold it."""
    file_of("").mkdir(parents=True, exist_ok=True)
    files = (file_of(f"{WEB}-{number}") for number in itertools.count())
    return next(file for file in files if _hold(file) is not None)


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
    file = file_of(role)
    if role == WEB:
        with contextlib.suppress(OSError):
            file = _take_file()
    health = Health(role=role, file=file)
    _of_thread.set(health)
    _begun.append(health)
    with contextlib.suppress(OSError):
        health.file.parent.mkdir(parents=True, exist_ok=True)
        health.write()  # a scrape may come before the thread's first write
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
    beats = []
    for file in files_of(role):
        with contextlib.suppress(OSError, ValueError):
            beats.append(_read(file)[1])
    return max(0.0, time.monotonic() - min(beats)) if beats else None


def describe_problems(role: str) -> str:
    """Return what is wrong with a role's loops, a line for each of its files, or an empty text."""
    return "\n".join(f"{file.name}: {text}" for file in files_of(role) if (text := _problem_of(file)))


def _problem_of(file: Path) -> str:
    try:
        if not file.stat().st_size:
            return "the process has not begun"
        until, at = _read(file)
    except FileNotFoundError:
        return f"{file} does not exist: the process has not begun, or has another HEALTH_DIR"
    except (OSError, ValueError) as error:
        return f"{file} cannot be read: {error}"
    now = time.monotonic()
    if until < now:
        return f"its loop hangs (no beat for {now - at:.0f} s), or the process is dead"
    if until > now + LONGEST_SECONDS:
        return f"{file} is older than this machine's last start"
    return ""


def _read(file: Path) -> tuple[float, float]:
    until, at = file.read_text().split()
    return float(until), float(at)


def begun() -> list[str]:
    """Return the roles that have a file in HEALTH_DIR, which in a container are its own."""
    names = [file.name for file in file_of("").glob("*") if not file.suffix]
    return sorted({match[1] if (match := _NUMBERED.fullmatch(name)) else name for name in names})


def main(arguments: list[str]) -> int:
    """Print what is wrong with each of the roles, by default all that have begun.

    Return 1 if anything is wrong or no role has begun, otherwise 0.
    """
    named = arguments or begun()
    troubles = [text for role in named if (text := describe_problems(role))]
    if not named:
        troubles = [f"no process has begun, or it has another HEALTH_DIR than {file_of('')}"]
    print("\n".join(troubles) or "running", file=sys.stderr if troubles else sys.stdout)
    return 1 if troubles else 0
