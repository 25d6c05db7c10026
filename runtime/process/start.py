"""Wait at a process's start for PostgreSQL, which no role but web can work without."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from django.db import InterfaceError, OperationalError, connections

from runtime.process.outage import Outage
from runtime.telemetry import health

log = structlog.get_logger(__name__)

RETRY_SECONDS = 1.0
LOOP = "start"


def wait_for_postgres(
    *, using: str = "default", pause: Callable[[float], object], work: Callable[[], object] | None = None
) -> None:
    """Connect to the database `using`, and call `work`. Repeat this until it succeeds. Log the first error.

    `pause` waits for seconds between two tries, as an event's `wait` does. If it returns true or raises an
    exception, the process must stop: return without a connection, or let the exception pass.
    """
    outage = Outage(log)
    try:
        while True:
            health.beat(LOOP)
            try:
                connections[using].ensure_connection()
                if work is not None:
                    work()
                return
            except (OperationalError, InterfaceError) as error:
                outage.warn("waiting for PostgreSQL", error)
                connections.close_all()
            if pause(RETRY_SECONDS):
                return
    finally:
        health.end(LOOP)
