"""The metrics of the API."""

from __future__ import annotations

from runtime.telemetry.metrics import histogram

REQUESTS = histogram(
    "orderpost_http_request_duration_seconds",
    "time to answer; operation such as `pay_order`, or `refused` for the problem `overloaded` or `too-slow`",
    ["operation", "status"],
    # in seconds, for work that normally takes milliseconds
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
