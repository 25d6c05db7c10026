"""The metrics of the API."""

from __future__ import annotations

from prometheus_client import Histogram

from runtime.telemetry.metrics import REGISTRY

REQUESTS = Histogram(
    "orderpost_http_request_duration_seconds",
    "Time to answer an API request",
    ["operation", "status"],
    # in seconds, for work that normally takes milliseconds
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
    registry=REGISTRY,
)
