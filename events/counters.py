"""The counters of events out and in. `events.conditions` has what the brokers know."""

from __future__ import annotations

from runtime.telemetry.metrics import counter

PUBLISHED = counter("orderpost_events_published", "events that the broker took", ["topic"])
RECEIVED = counter(
    "orderpost_inbox_events",
    "`handled`, `repeated`, `refused` (dead letter), `own` (ignored), `retried`;"
    " `rejected` (over HTTP, not stored)",
    ["topic", "result"],
)
FALLBACKS_USED = counter(
    "orderpost_event_fallbacks",
    "unusable values in events of other systems' orders that were replaced",
    ["field"],
)
