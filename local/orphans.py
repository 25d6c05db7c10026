"""Find and stop the processes that an earlier run of this checkout left. For `local`.

Usually the guard has stopped them. This module stops programs that ignored their signal, and those of a
`make run` that was killed while it stopped.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

MARKER = "ORDERPOST_RUN"  # in the environment of every process of a run: the path of its var/

PROC = Path("/proc")


def find(*, var: Path, postgres_data: Path) -> dict[int, int]:
    """Return the process ids of this checkout's runs, each with its parent's id."""
    mark = f"{MARKER}={var}".encode()
    server = _postmaster(postgres_data)
    found: dict[int, int] = {}
    for entry in PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        pid = int(entry.name)
        with suppress(OSError):  # it has exited, or belongs to another user
            state, parent = _state_and_parent(pid)
            if state != "Z" and (pid == server or mark in (entry / "environ").read_bytes().split(b"\0")):
                found[pid] = parent
    return found


def end(*, var: Path, postgres_data: Path, grace_seconds: float) -> int:
    """Stop every process that `find` finds, and return their number.

    Signal only the processes whose parent is not among them, because each stops its own children. After
    `grace_seconds` kill all.
    """
    deadline = time.monotonic() + grace_seconds
    told: set[int] = set()
    seen: set[int] = set()
    while found := find(var=var, postgres_data=postgres_data):
        seen |= found.keys()
        late = time.monotonic() > deadline
        for pid, parent in found.items():
            if late or (parent not in found and pid not in told):
                told.add(pid)
                polite = signal.SIGINT if pid == _postmaster(postgres_data) else signal.SIGTERM
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL if late else polite)
        if time.monotonic() > deadline + 10:
            break  # it may not be killed or is stuck in the kernel, so start without stopping it
        time.sleep(0.05)
    return len(seen)


def _postmaster(data: Path) -> int | None:
    """Return the process id of this data directory's server, or None.

    If root has no namespaces, the server runs as another user, and `find` cannot read its environment.
    """
    try:
        pid = int((data / "postmaster.pid").read_text().splitlines()[0])
        is_postgres = (PROC / str(pid) / "comm").read_text().strip() == "postgres"
    except (OSError, ValueError, IndexError):
        return None
    return pid if is_postgres else None


def _state_and_parent(pid: int) -> tuple[str, int]:
    # "pid (name) state ppid …", where the name may contain any character.
    fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[1])
