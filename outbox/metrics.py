"""The metrics of polls, triggers and claims. `outbox.conditions` has what the brokers know."""

from __future__ import annotations

from runtime.telemetry.metrics import histogram

POLLS = histogram(
    "orderpost_poll_duration_seconds",
    "time of a poll with its drain",
    buckets=(0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)
CLAIMS = histogram(
    "orderpost_claim_duration_seconds",
    "time of the query that finds and claims due rows, also if there are none",
    ["table"],
    buckets=(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),
)

TRIGGER_DELAYS = histogram(
    "orderpost_trigger_delay_seconds",
    "time from an e-mail's insert to its first claim, by the first reason since the claim before",
    ["reason"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0, 3600.0),
)
