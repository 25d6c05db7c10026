"""The metrics of the events that orders consumes."""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings
from prometheus_client.core import GaugeMetricFamily

from orders.inbound.payments_and_stock import subscribed
from outbox.events.consuming.consumer import GROUP
from outbox.events.transports import consumer_lags
from outbox.telemetry.metrics import from_broker


@from_broker(settings.EVENT_TRANSPORT)
def lag() -> Iterator[GaugeMetricFamily]:
    events = GaugeMetricFamily(
        "orderpost_consumer_lag_events", "Events that our consumers have not acknowledged", labels=["topic"]
    )
    seconds = GaugeMetricFamily(
        "orderpost_consumer_lag_seconds", "Age of the oldest such event", labels=["topic"]
    )
    for one in consumer_lags(topics=sorted(subscribed()), group=GROUP):
        events.add_metric([one.topic], one.events)
        seconds.add_metric([one.topic], one.seconds)
    yield from (events, seconds)
