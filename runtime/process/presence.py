"""Each process's row in `heartbeats`: its kind, host, number and release, and when it last beat.

`manage.py status` and the admin's first page name a process whose beat is old: it is frozen or gone. A
process deletes its row when it stops. The row of a killed one goes when its successor starts on the same
host, when a person forgets it, or after a day.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import multiprocessing.util
import os
import socket
import threading
import uuid

from django.db import DatabaseError, InterfaceError, connection

from runtime.telemetry import health
from runtime.telemetry.release import version

BEAT_SECONDS = 5.0
#: After an outage, the rows of all processes are old. Beat again soon, so that none looks frozen.
RETRY_SECONDS = 1.0
#: The longest time that a stopping process waits until its row is deleted.
STOP_SECONDS = 2.0
#: Without a beat for so long, a process is named.
QUIET_SECONDS = 20.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Presence:
    """One role of this process. A process with several roles has a row for each."""

    kind: str
    host: str = dataclasses.field(default_factory=lambda: socket.gethostname()[:100])
    process: int = dataclasses.field(default_factory=os.getpid)
    # Not "worker@…": the relays count each other by names that begin with "relay@".
    name: str = dataclasses.field(default_factory=lambda: f"process@{uuid.uuid4().hex}")

    def beat(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                """
                INSERT INTO heartbeats (name, kind, host, process, release) VALUES (%s, %s, %s, %s, %s)
                ON CONFLICT (name) DO UPDATE SET beat_at = statement_timestamp()
                """,
                [self.name, self.kind, self.host, self.process, version()[:50]],
            )

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


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
