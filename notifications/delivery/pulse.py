"""The heartbeat of the web process. Screening reads from it since when webhooks could arrive."""

from __future__ import annotations

import time

import structlog
from django.db import DatabaseError, InterfaceError, connection

from notifications.delivery.screening import ENDPOINT
from outbox.models import Heartbeat
from outbox.telemetry import health

log = structlog.get_logger(__name__)

PULSE_SECONDS = 5.0


def pulse() -> None:
    """Beat until the process exits. Run it in a thread of the web process."""
    while True:
        health.beat()
        try:
            Heartbeat.beat(name=ENDPOINT)
        except (DatabaseError, InterfaceError) as error:
            log.warning("no pulse: the database does not answer", error=str(error))
            connection.close()
        time.sleep(PULSE_SECONDS)
