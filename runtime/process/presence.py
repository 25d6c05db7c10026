"""Each process's row in `heartbeats`: its kind, host, number and release, and when it last beat.

`manage.py status` and the admin's first page name a process whose beat is old: it is frozen or gone. A
process deletes its row when it stops. The row of a killed one goes when its successor starts on the same
host, when a person forgets it, or after a day.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import datetime as dt
import enum
import multiprocessing.util
import os
import socket
import threading
import time
import uuid
from pathlib import Path

from django.db import DatabaseError, InterfaceError, connection

from runtime.lateness import lateness
from runtime.telemetry import health
from runtime.telemetry.release import version

BEAT_SECONDS = 5.0
#: Seconds without a beat that count as a gap, after which a process or job begins again.
GAP_SECONDS = 15.0
#: After an outage, the rows of all processes are old. Beat again soon, so that none looks frozen.
RETRY_SECONDS = 1.0
#: The longest time that a stopping process waits until its row is deleted.
STOP_SECONDS = 2.0


@dataclasses.dataclass(kw_only=True)
class Presence:
    """One role of this process. A process with several roles has a row for each."""

    kind: str
    host: str = dataclasses.field(default_factory=lambda: socket.gethostname()[:100])
    process: int = dataclasses.field(default_factory=os.getpid)
    # Not "worker@…": the relays count each other by names that begin with "relay@".
    name: str = dataclasses.field(default_factory=lambda: f"process@{uuid.uuid4().hex}")
    #: By how many seconds this host's clock was ahead of the database's at the last beat.
    clock_ahead: float | None = None

    def beat(self) -> None:
        """Write the row, with what the last beat found out about the clock. After a gap, begin again."""
        before = dt.datetime.now(dt.UTC)
        with connection.cursor() as cursor:
            cursor.execute(
                """
                INSERT INTO heartbeats AS old (name, kind, host, process, release, clock_ahead)
                VALUES (%s, %s, %s, %s, %s, %s)
                ON CONFLICT (name) DO UPDATE SET beat_at = statement_timestamp(),
                    clock_ahead = excluded.clock_ahead, since = CASE
                        WHEN old.beat_at < statement_timestamp() - %s * interval '1 second'
                        THEN statement_timestamp() ELSE old.since END
                RETURNING statement_timestamp()
                """,
                [
                    *(self.name, self.kind, self.host, self.process, version()[:50]),
                    *(self.clock_ahead, GAP_SECONDS),
                ],
            )
            theirs: dt.datetime = cursor.fetchone()[0]
        # The database's clock was read between two readings of ours, however long the answer took.
        ahead = max(before - theirs, min(dt.datetime.now(dt.UTC) - theirs, dt.timedelta(0)))
        self.clock_ahead = round(ahead.total_seconds(), 3)

    def forget(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM heartbeats WHERE name = %s", [self.name])

    def forget_predecessors(self) -> None:
        """Delete the rows of processes of this kind and host that do not exist any more."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT name, process FROM heartbeats WHERE kind = %s AND host = %s AND name <> %s",
                [self.kind, self.host, self.name],
            )
            # In a restarted container, the predecessor had this process's number.
            gone = [
                name for name, process in cursor.fetchall() if process == self.process or not _exists(process)
            ]
            if gone:
                cursor.execute("DELETE FROM heartbeats WHERE name = ANY(%s)", [gone])


def keep_beating(kind: str) -> None:
    """Beat in a thread until the process exits. Call this after a fork and after `health.begin`.

    Raise `ImproperlyConfigured` if a connection shows that the process must not use this database.
    """
    if connection.connection is None:
        with contextlib.suppress(DatabaseError, InterfaceError):  # the role itself waits for PostgreSQL
            connection.ensure_connection()
        connection.close()  # web's main thread needs none
    stopped = threading.Event()
    thread = threading.Thread(
        target=_run, args=[Presence(kind=kind), stopped], name=f"presence-{kind}", daemon=True
    )
    thread.start()
    lateness.watch()

    def stop() -> None:
        stopped.set()
        thread.join(STOP_SECONDS)

    atexit.register(stop)
    # Web's workers are processes of multiprocessing, which run these functions instead of those of atexit.
    multiprocessing.util.Finalize(None, stop, exitpriority=10)


def _run(presence: Presence, stopped: threading.Event) -> None:
    """Beat while the role's loops run, too. An outage is silent here: the loops log it."""
    is_first, wait = True, 0.0
    while not stopped.wait(wait):
        wait = BEAT_SECONDS
        if health.is_late(presence.kind):
            continue
        try:
            presence.beat()
            if is_first:
                presence.forget_predecessors()
            is_first = False
        except (DatabaseError, InterfaceError):
            connection.close()
            wait = RETRY_SECONDS
    try:
        if connection.connection is not None:  # do not wait for a connection to a database that is away
            presence.forget()
    except (DatabaseError, InterfaceError):
        pass
    connection.close()


class ProcessState(enum.Enum):
    FROZEN = "stopped by a signal"
    RUNNING = "running or waiting"
    GONE = "gone"


def find_state(*, host: str, process: int, up_seconds: float) -> ProcessState | None:
    """Return the state of a process of this host that began `up_seconds` ago, or None if it is of another."""
    if host != socket.gethostname()[:100]:
        return None
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ProcessState.GONE
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    if fields[0] in "ZX" or age < up_seconds - BEAT_SECONDS:  # another one has its number now
        return ProcessState.GONE
    return ProcessState.FROZEN if fields[0] in "Tt" else ProcessState.RUNNING


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
