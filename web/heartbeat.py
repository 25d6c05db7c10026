"""The thread of each web process that beats, writes what requests noted, and refreshes cached rows.

The heartbeat tells since when webhooks could arrive.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog
from django.db import DatabaseError, InterfaceError, connection

from runtime.database import replica
from runtime.database.away import silence
from runtime.models import Heartbeat
from runtime.process import cached_rows
from runtime.process.outage import Outage
from runtime.telemetry import health
from web.api import token_use

#: The heartbeat of the process that receives webhooks.
ENDPOINT = "web"

_writers: list[Callable[[], object]] = [token_use.write]

log = structlog.get_logger(__name__)

BEAT_SECONDS = 5.0
#: A replica's age is that of its last commit, so something must commit more often than it may be behind.
BEAT_SECONDS_FOR_REPLICA = 2.0


def register_writer(write: Callable[[], object]) -> None:
    """Register a function that saves what requests noted in memory."""
    _writers.append(write)


def beat_forever() -> None:
    """Beat until the process exits."""
    outage = Outage(log)
    while True:
        health.beat()
        try:
            Heartbeat.beat(name=ENDPOINT)
            if replica.read(replica.alias) == replica.ALIAS:
                Heartbeat.beat(name=replica.FOLLOWS, every=BEAT_SECONDS)
            for write in _writers:
                write()
            cached_rows.refresh()
            outage.end()
            silence.end()
        except (DatabaseError, InterfaceError) as error:
            silence.begin()
            outage.warn("no heartbeat: the database does not answer", error)
            connection.close()
        time.sleep(BEAT_SECONDS_FOR_REPLICA if replica.is_set() else BEAT_SECONDS)
