"""The counters of events out and in. `events.metrics` has what the brokers know."""

from __future__ import annotations

from prometheus_client import Counter

from runtime.telemetry.metrics import REGISTRY

PUBLISHED = Counter("orderpost_events_published", "Events that the broker took", ["topic"], registry=REGISTRY)
RECEIVED = Counter(
    "orderpost_inbox_events", "Events of other services", ["topic", "result"], registry=REGISTRY
)
