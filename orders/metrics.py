"""The metrics of stuck orders, and of the events that orders consumes."""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings
from prometheus_client.core import GaugeMetricFamily

from orders.inbound.payments_and_stock import subscribed
from orders.stuck import read_stuck
from outbox.events.consuming.consumer import GROUP
from outbox.events.transports import consumer_lags
from outbox.facts import MOST
from outbox.telemetry.metrics import at_scrape, from_broker


@at_scrape
def stuck() -> Iterator[GaugeMetricFamily]:
    orders = GaugeMetricFamily(
        "orderpost_stuck_orders", f"Orders stuck in a state, counted up to {MOST}", labels=["state"]
    )
    seconds = GaugeMetricFamily(
        "orderpost_stuck_orders_oldest_seconds", "How long the oldest has been in the state", labels=["state"]
    )
    for state, found in read_stuck().items():
        orders.add_metric([state], found.orders)
        seconds.add_metric([state], found.oldest_seconds)
    yield from (orders, seconds)


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
