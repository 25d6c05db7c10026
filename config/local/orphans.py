"""Finds and ends what an earlier run of this checkout left, for `config.local`.

The guard leaves nothing in the ordinary case. This is for the rest: a program that ignored its signal, a
machine without /proc/sys rights, a `make run` that was killed in the middle of its stop.
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
    """This function will return the living processes of this checkout's runs, with the parent of each."""
    mark = f"{MARKER}={var}".encode()
    server = _postmaster(postgres_data)
    found: dict[int, int] = {}
    for entry in PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        pid = int(entry.name)
        with suppress(OSError):  # it ended meanwhile, or belongs to someone else
            state, parent = _state_and_parent(pid)
            if state != "Z" and (pid == server or mark in (entry / "environ").read_bytes().split(b"\0")):
                found[pid] = parent
    return found


def end(*, var: Path, postgres_data: Path, grace: float) -> int:
    """This function will end every process that `find` finds and return how many there were.

    Each topmost one gets its own signal and ends what is below it; after `grace` seconds all are killed.
    """
    deadline = time.monotonic() + grace
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
            break  # not ours to kill, or stuck in the kernel: the start that follows will say what is taken
        time.sleep(0.05)
    return len(seen)


def _postmaster(data: Path) -> int | None:
    """The server of this data directory: it runs as another user where root has no namespaces."""
    try:
        pid = int((data / "postmaster.pid").read_text().splitlines()[0])
        is_postgres = (PROC / str(pid) / "comm").read_text().strip() == "postgres"
    except (OSError, ValueError, IndexError):
        return None
    return pid if is_postgres else None


def _state_and_parent(pid: int) -> tuple[str, int]:
    # "pid (name) state ppid …", and the name may hold anything.
    fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[1])
