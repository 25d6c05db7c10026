"""`manage.py consume_cdc`: wake workers and relays as soon as Debezium reports rows. Any number may run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, InterfaceError, connections

from events.publishing import notify
from events.transports import BrokerConsumer, member_name
from notifications.wake import Reason, wake
from outbox import cdc
from runtime.models import Heartbeat
from runtime.process.loop import stop_on_signals
from runtime.process.presence import keep_beating
from runtime.process.start import wait_for_postgres
from runtime.telemetry.metrics_server import watch

#: What a message about a table wakes: the workers or the relays, both through Valkey.
WAKES: dict[str, Callable[[], None]] = {
    "email_notifications": lambda: wake(Reason.CDC),
    "outbox_events": notify.waker.wake,
}


class Command(BaseCommand):
    help = (
        "Wake the workers and the relays when Debezium reports new rows. It reads the messages from Kafka, "
        "and wakes through Valkey. May run next to polls and other triggers, because a message is only a "
        "wake-up."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until SIGTERM or SIGINT."""
        connect = _connector()
        watch("cdc")
        keep_beating("cdc")
        stopped = stop_on_signals()
        wait_for_postgres(pause=stopped.wait)
        cdc.run(connect=connect, wakes=WAKES, alive=beat, stopped=stopped)


def beat() -> None:
    """Write the heartbeat, or leave it out while the database is away, because a wake-up does not need it."""
    try:
        Heartbeat.beat(name=cdc.CDC, every=5.0)
    except (DatabaseError, InterfaceError):
        connections.close_all()  # so that the next one connects again


def _connector() -> Callable[[], BrokerConsumer]:
    if not settings.KAFKA_BOOTSTRAP_SERVERS:
        raise CommandError("consume_cdc needs KAFKA_BOOTSTRAP_SERVERS, such as kafka:9092.")
    try:
        from events.transports import kafka
    except ImportError as error:
        raise CommandError("consume_cdc needs confluent-kafka: install the extra `kafka`.") from error
    member = member_name()

    def connect() -> BrokerConsumer:
        # The connector creates the topics, with its own retention.
        return kafka.KafkaConsumer(topics=cdc.TOPICS, group=cdc.GROUP, name=member, creates=False)

    return connect
