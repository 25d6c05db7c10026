"""How far consume_cdc is behind on Kafka, in shops that run it. For the metrics and `manage.py status`."""

from __future__ import annotations

import importlib.util
from collections.abc import Container

from django.conf import settings

from events.transports import Lag, consumer_lags
from outbox import cdc
from runtime.models import Heartbeat

#: The heartbeat of the consumers. It is purged a week after the last beat, and then the shop has none.
CDC = "cdc"


def is_used(heartbeats: Container[str] | None = None) -> bool:
    """Return whether a consumer has run within a week, and this process has what it needs to ask Kafka.

    `heartbeats` are the names of all heartbeats. Without them, query the database.
    """
    if not settings.KAFKA_BOOTSTRAP_SERVERS or importlib.util.find_spec("confluent_kafka") is None:
        return False
    return has_run() if heartbeats is None else CDC in heartbeats


def has_run() -> bool:
    """Return whether a consumer has run within a week. Query the database."""
    return Heartbeat.objects.filter(name=CDC).exists()


def read_cdc_lags() -> list[Lag]:
    """Return the lag of each topic. Raise `BrokerAway`."""
    return consumer_lags(topics=cdc.TOPICS, group=cdc.GROUP, transport="kafka")
