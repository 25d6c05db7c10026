"""The heartbeat of the web process. Screening reads from it since when webhooks could arrive.

The same thread writes which tokens were used, and keeps the cached rows fresh.
"""

from __future__ import annotations

import time

import structlog
from django.db import DatabaseError, InterfaceError, connection

from runtime.models import Heartbeat
from runtime.process import cached_rows
from runtime.process.outage import Outage
from runtime.telemetry import health
from web.api import token_use

#: The heartbeat of the process that receives webhooks.
ENDPOINT = "web"

log = structlog.get_logger(__name__)

PULSE_SECONDS = 5.0


def pulse() -> None:
    """Beat until the process exits. Run it in a thread of the web process."""
    outage = Outage(log)
    while True:
        health.beat()
        try:
            Heartbeat.beat(name=ENDPOINT)
            token_use.write()
            cached_rows.refresh()
            outage.end()
        except (DatabaseError, InterfaceError) as error:
            outage.warn("no pulse: the database does not answer", error)
            connection.close()
        time.sleep(PULSE_SECONDS)
