"""Tell a container's probe whether a process's own loops still go round.

Each loop calls `beat`, a thread writes a file every few seconds, and `manage.py health ROLE` reads it. None
of them asks another server, so an outage of the database or of a broker makes no process unhealthy. This
module imports the standard library alone: the probe starts a Python for each look.
"""

from __future__ import annotations

import contextlib
import contextvars
import os
import sys
import threading
import time
from pathlib import Path

#: Seconds without a beat after which a loop hangs.
WITHIN_SECONDS = 60.0
WRITE_SECONDS = 5.0  # seconds between two writes of the file
#: No loop promises its next beat later than this: a file of an earlier boot does.
LONGEST_SECONDS = 7200.0
DEFAULT_DIRECTORY = Path(__file__).resolve().parent.parent.parent / "var" / "run" / "health"


class Health:
    """The loops of one role. Times are of the machine's monotonic clock, which all its processes share."""

    def __init__(self, *, role: str, file: Path) -> None:
        self.role, self.file = role, file
        self.process = os.getpid()
        self._loops: dict[str, tuple[float, float]] = {}  # when it beat, until when it must beat again
        self._lock = threading.Lock()

    def beat(self, loop: str, *, within_seconds: float) -> None:
        now = time.monotonic()
        self._loops[loop] = now, now + min(within_seconds, LONGEST_SECONDS)

    def end(self, loop: str) -> None:
        self._loops.pop(loop, None)

    def forget(self) -> None:
        """Forget every loop, because the command of the role starts again."""
        self._loops.clear()

    def write(self) -> None:
        """Write until when the file is good, and when the loop that is quiet for longest beat."""
        now = time.monotonic()
        with self._lock:
            loops = [*self._loops.values(), (now, now + WITHIN_SECONDS)]
            text = f"{min(until for _, until in loops):.3f} {min(at for at, _ in loops):.3f}\n"
            new = self.file.with_suffix(f".{os.getpid()}")
            new.write_text(text)
            new.replace(self.file)

    def keep_writing(self) -> None:
        """Write every few seconds until the process ends; a full disk is the log's business, not ours."""
        while True:
            with contextlib.suppress(OSError):
                self.write()
            time.sleep(WRITE_SECONDS)


_begun: list[Health] = []
_of_thread: contextvars.ContextVar[Health | None] = contextvars.ContextVar("health", default=None)


def file_of(role: str) -> Path:
    """Return the file of a role, in HEALTH_DIR."""
    return Path(os.environ.get("HEALTH_DIR") or DEFAULT_DIRECTORY) / role


def begin(role: str) -> None:
    """Keep the file of `role` from now on. After a fork, and in the thread of the role's loop.

    In a process of several roles each thread begins its own; threads that began none count for the first. A
    role that begins again in its process keeps its file and forgets its loops.
    """
    for known in _begun:
        if known.role == role and known.process == os.getpid():
            known.forget()
            _of_thread.set(known)
            return
    health = Health(role=role, file=file_of(role))
    _of_thread.set(health)
    _begun.append(health)
    with contextlib.suppress(OSError):
        health.file.parent.mkdir(parents=True, exist_ok=True)
        health.write()  # a scrape may come before the thread's first turn
    threading.Thread(target=health.keep_writing, name=f"health-{role}", daemon=True).start()


def roles() -> list[str]:
    """Return the roles of this process."""
    return [health.role for health in _begun]


def _mine() -> Health | None:
    return _of_thread.get() or (_begun[0] if _begun else None)


def beat(loop: str = "loop", *, within_seconds: float = WITHIN_SECONDS) -> None:
    """Say that a loop goes round and will say so again `within_seconds`."""
    if (health := _mine()) is not None:
        health.beat(loop, within_seconds=within_seconds)


def end(loop: str = "loop") -> None:
    """Say that a loop has ended, or that its waits are not its own for a while."""
    if (health := _mine()) is not None:
        health.end(loop)


def wait(stopped: threading.Event, seconds: float) -> None:
    """Wait as `stopped.wait` does, with a beat every few seconds."""
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        beat()
        if stopped.wait(min(left, WRITE_SECONDS)):
            return


def quiet_seconds(role: str) -> float | None:
    """Return for how long the quietest loop of a role has not beaten; None without a file."""
    try:
        _, at = _read(file_of(role))
    except (OSError, ValueError):
        return None
    return max(0.0, time.monotonic() - at)


def trouble(role: str) -> str:
    """Say what is wrong with a role's loops; an empty text if nothing is."""
    file = file_of(role)
    try:
        until, at = _read(file)
    except FileNotFoundError:
        return f"{role}: {file} is not there: the process has not begun, or has another HEALTH_DIR"
    except (OSError, ValueError) as error:
        return f"{role}: {file} cannot be read: {error}"
    now = time.monotonic()
    if until < now:
        return f"{role}: its loop hangs since {now - at:.0f} s, or the process is gone"
    if until > now + LONGEST_SECONDS:
        return f"{role}: {file} is older than this machine's last start"
    return ""


def _read(file: Path) -> tuple[float, float]:
    until, at = file.read_text().split()
    return float(until), float(at)


def begun() -> list[str]:
    """Return the roles that have a file in HEALTH_DIR: of a container, its own one."""
    return sorted(file.name for file in file_of("").glob("*") if not file.suffix)


def main(arguments: list[str]) -> int:
    """Print what is wrong with each of the roles, by default all that have begun; return 1 if anything is.

    Return 1 as well if none has begun.
    """
    named = arguments or begun()
    troubles = [text for role in named if (text := trouble(role))]
    if not named:
        troubles = [f"no process has begun, or it has another HEALTH_DIR than {file_of('')}"]
    print("\n".join(troubles) or "goes round", file=sys.stderr if troubles else sys.stdout)
    return 1 if troubles else 0
