"""`manage.py consume_events`: the consumer's process. Any number of them may run."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand

from events import transports
from events.consuming import consumer
from events.consuming.handlers import subscription
from runtime.process.cached_rows import keep_fresh
from runtime.process.loop import stop_on_signals
from runtime.process.presence import keep_beating
from runtime.process.start import wait_for_postgres
from runtime.telemetry.metrics_server import watch


class Command(BaseCommand):
    help = "Process the events of other services until stopped. Several consumers share the topics."

    def handle(self, *args: Any, **options: Any) -> None:
        watch("consumer")
        keep_beating("consumer")
        stopped = stop_on_signals()
        wait_for_postgres(pause=stopped.wait)
        keep_fresh()
        member = transports.member_name()
        registered = subscription()
        handlers = registered.read()
        consumer.run(
            connect=lambda: transports.consumer(topics=sorted(handlers), group=consumer.GROUP, name=member),
            name=registered.name,
            handlers=handlers,
            published_topics=registered.published_topics,
            stopped=stopped,
        )
