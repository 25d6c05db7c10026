"""The engine's counters and histograms. docs/reference/metrics.md describes each."""

from __future__ import annotations

from prometheus_client import Counter, Histogram

from runtime.telemetry.metrics import REGISTRY

#: Buckets in seconds for work that normally takes milliseconds.
QUICK = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
#: Buckets in seconds for work that normally takes up to a minute.
LONG = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

REQUESTS = Histogram(
    "orderpost_http_request_duration_seconds",
    "Time to answer an API request",
    ["operation", "status"],
    buckets=QUICK,
    registry=REGISTRY,
)
POLLS = Histogram(
    "orderpost_poll_duration_seconds", "Time of a poll, with its drain", buckets=LONG, registry=REGISTRY
)
CLAIMS = Histogram(
    "orderpost_claim_duration_seconds",
    "Time of a claim's statement, with its commit",
    ["table"],
    buckets=(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),
    registry=REGISTRY,
)
WAKEUPS = Counter("orderpost_wakeups", "Wake-ups after a commit", ["target", "result"], registry=REGISTRY)
PUBLISHED = Counter("orderpost_events_published", "Events that the broker took", ["topic"], registry=REGISTRY)
RECEIVED = Counter(
    "orderpost_inbox_events", "Events of other services", ["topic", "result"], registry=REGISTRY
)
