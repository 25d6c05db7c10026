"""`manage.py relay_outbox`: the process that publishes domain events. Any number may run."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from events.publishing import relay
from runtime.process.loop import stop_on_signals
from runtime.process.presence import keep_beating
from runtime.process.start import wait_for_postgres
from runtime.telemetry.metrics_server import watch


class Command(BaseCommand):
    help = "Publish outbox_events in order until stopped. Several relays share the work."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="exit when nothing is left to publish")

    def handle(self, *args: Any, once: bool, **options: Any) -> None:
        watch("relay")
        keep_beating("relay")
        stopped = stop_on_signals()
        wait_for_postgres(using="direct", pause=stopped.wait)
        relay.run(stopped=stopped, once=once)
