"""`manage.py relay_outbox`: the process that publishes domain events. Any number may run."""

from __future__ import annotations

import signal
import threading
from typing import Any

import structlog
from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, InterfaceError, connections

from outbox.core.backoff import ceiling
from outbox.events import relay

log = structlog.get_logger(__name__)


class Command(BaseCommand):
    """See the module."""

    help = "Publishes outbox_events in order until stopped; several relays share the work."

    def add_arguments(self, parser: CommandParser) -> None:
        """For ever by default."""
        parser.add_argument("--once", action="store_true", help="end when nothing is left to publish")

    def handle(self, *args: Any, once: bool, **options: Any) -> None:
        """Relay until SIGTERM or SIGINT; the database may come and go."""
        stopped = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
        failures = 0
        while not stopped.is_set():
            try:
                relay.run(stopped=stopped, once=once)
                return
            except (DatabaseError, InterfaceError) as error:
                failures += 1
                wait = ceiling(retry=min(failures, 5), base=relay.BACKOFF_BASE, cap=relay.BACKOFF_CAP)
                log.warning("database away, events wait", error=str(error), seconds=wait)
                connections["direct"].close()
                stopped.wait(wait)
