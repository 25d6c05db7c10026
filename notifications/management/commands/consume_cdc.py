"""`manage.py consume_cdc`: send e-mails as soon as Debezium reports their rows. Any number may run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from notifications.delivery import drain
from notifications.delivery.beats import Beats
from notifications.delivery.woken import WokenDrain
from outbox.events.consuming import cdc
from outbox.events.consuming.cdc_lag import CDC
from outbox.events.transports import Consumer, member_name
from outbox.process.loop import stop_on_signals
from outbox.process.start import wait_for_postgres
from outbox.telemetry.metrics_server import watch


class Command(BaseCommand):
    help = (
        "Reads a Debezium connector's messages about new rows of email_notifications and outbox_events from "
        "Kafka, sends due e-mails in this process and wakes the relays. May run next to workers, polls and "
        "other triggers, because a message only wakes the drain."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until SIGTERM or SIGINT. Then give back the rows that are not begun, and return."""
        connect = _connector()
        watch("cdc")
        stopped = stop_on_signals(also=drain.stop)
        wait_for_postgres(pause=stopped.wait)
        with WokenDrain(stopped=stopped) as emails:
            cdc.run(connect=connect, wakes=emails.targets(), alive=Beats(CDC).beat, stopped=stopped)


def _connector() -> Callable[[], Consumer]:
    if not settings.KAFKA_BOOTSTRAP_SERVERS:
        raise CommandError("consume_cdc needs KAFKA_BOOTSTRAP_SERVERS, such as kafka:9092.")
    try:
        from outbox.events.transports import kafka
    except ImportError as error:
        raise CommandError("consume_cdc needs confluent-kafka: install the extra `kafka`.") from error
    member = member_name()

    def connect() -> Consumer:
        # The connector creates the topics, with its own retention.
        return kafka.Consumer(
            topics=settings.CDC_TOPICS, group=settings.CDC_GROUP, name=member, creates=False
        )

    return connect
