"""The heartbeat of a process that takes webhooks: held sends ask how long it has been there."""

from __future__ import annotations

import time

import structlog
from django.db import DatabaseError, InterfaceError, connection

from notifications.delivery.screening import ENDPOINT
from outbox.models import Heartbeat

log = structlog.get_logger(__name__)

PULSE_SECONDS = 5.0


def pulse() -> None:
    """Beat for as long as this process lives; for a thread of the web process."""
    while True:
        try:
            Heartbeat.beat(name=ENDPOINT)
        except (DatabaseError, InterfaceError) as error:
            log.warning("no pulse: the database does not answer", error=str(error))
            connection.close()
        time.sleep(PULSE_SECONDS)
