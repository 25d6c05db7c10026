"""`manage.py consume_events`: the process that takes events of other services in. Any number may run."""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import Any

from django.core.management.base import BaseCommand

from orders.handlers import HANDLERS, NAME
from outbox.events import inbox, transports


class Command(BaseCommand):
    """See the module."""

    help = "Consumes payment and stock events until stopped; several consumers share the work."

    def handle(self, *args: Any, **options: Any) -> None:
        """Consume until SIGTERM or SIGINT."""
        stopped = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
        member = f"{socket.gethostname()}:{os.getpid()}"
        inbox.run(
            make=lambda: transports.consumer(topics=sorted(HANDLERS), group=inbox.GROUP, name=member),
            name=NAME,
            handlers=HANDLERS,
            stopped=stopped,
        )
