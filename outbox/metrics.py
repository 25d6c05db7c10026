"""The metrics of the sender: polls, triggers, claims, breakers, and the lag of change data capture."""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings
from prometheus_client import Histogram
from prometheus_client.core import GaugeMetricFamily

from events.metrics import _families
from outbox import cdc
from outbox.gate.breaker import State
from outbox.gate.shared_state import read_breakers
from runtime.telemetry.metrics import REGISTRY, from_broker

POLLS = Histogram(
    "orderpost_poll_duration_seconds",
    "Time of a poll, with its drain",
    buckets=(0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
    registry=REGISTRY,
)
CLAIMS = Histogram(
    "orderpost_claim_duration_seconds",
    "Time of a claim's statement, with its commit",
    ["table"],
    buckets=(0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),
    registry=REGISTRY,
)

TRIGGER_DELAYS = Histogram(
    "orderpost_trigger_delay_seconds",
    "Time from an e-mail's insert to its first claim, by the database's clock",
    ["reason"],
    buckets=(0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0, 3600.0),
    registry=REGISTRY,
)


@from_broker("kafka", is_used=cdc.is_used)
def lag_of_cdc() -> Iterator[GaugeMetricFamily]:
    return _families(cdc.read_cdc_lags(), group=cdc.GROUP)


@from_broker("redis")
def breakers() -> Iterator[GaugeMetricFamily]:
    state = GaugeMetricFamily(
        "orderpost_breaker_state", "1 for a breaker's current state", labels=["provider", "state"]
    )
    forced = GaugeMetricFamily(
        "orderpost_breaker_forced", "1 if a person has forced the breaker", labels=["provider", "to"]
    )
    now, found = read_breakers(settings.EMAIL_PROVIDERS)
    for provider, breaker in found.items():
        for one in State:
            state.add_metric([provider, one.value], breaker.state(now) is one)
        for to in ("open", "closed"):
            forced.add_metric([provider, to], breaker.forced == to)
    yield from (state, forced)
