"""`manage.py drain_outbox [--standby | --loop]`: delivery with no broker, no worker and no beat at all."""

from __future__ import annotations

import random
import signal
import threading
from typing import Any

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError, InterfaceError, connections

from notifications.delivery import drain as delivery
from outbox.core.backoff import ceiling, jitter
from outbox.models import Heartbeat

log = structlog.get_logger(__name__)

#: The standby acts once the last poll is older than this many intervals, and looks this often in each.
STANDBY_AFTER = 2
LOOKS = 4


class Command(BaseCommand):
    """See the module."""

    help = (
        "Takes back expired claims, then claims and sends e-mails until none is due. Needs PostgreSQL and "
        "the provider, nothing else. May run beside workers and other drains."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Once by default."""
        mode = parser.add_mutually_exclusive_group()
        mode.add_argument("--loop", action="store_true", help="poll every POLL_INTERVAL until stopped")
        mode.add_argument(
            "--standby",
            action="store_true",
            help="poll only while nobody else does: the last recorded poll is older than two intervals",
        )

    def handle(self, *args: Any, loop: bool, standby: bool, **options: Any) -> None:
        """Run until done, or until SIGTERM or SIGINT: then give back what is not begun, and end."""
        stopped = threading.Event()

        def stop(*_: object) -> None:
            stopped.set()
            delivery.stop()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        if not (loop or standby):
            self._drain(stopped, record=True)
            return
        interval = settings.POLL_INTERVAL / (LOOKS if standby else 1)
        refusals = 0
        while not stopped.is_set():
            wait = interval
            try:
                if loop or _nobody_polls():
                    self._drain(stopped, record=loop)
                refusals = 0
            except (DatabaseError, InterfaceError) as error:
                refusals += 1
                wait = max(
                    0.1,
                    jitter(
                        seconds=ceiling(retry=refusals, base=2.0, cap=interval),
                        low=0.0,
                        high=1.0,
                        chance=random.random(),  # noqa: S311
                    ),
                )
                log.warning("database away, trying again", error=str(error), seconds=round(wait, 1))
                connections.close_all()
            stopped.wait(wait)

    def _drain(self, stopped: threading.Event, *, record: bool) -> None:
        done = delivery.poll(record=record)
        sent = 0
        while done is not None:
            sent += done.settled
            if not done.more or stopped.is_set():
                break
            done = delivery.drain_emails()
        if sent:
            log.info("drained", settled=sent)


def _nobody_polls() -> bool:
    age = Heartbeat.age(name=delivery.POLL)
    return age is None or age > STANDBY_AFTER * settings.POLL_INTERVAL
