"""The metrics from the database. Each app's `metrics.py` has the counters of a process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily

from events.conditions import UNFINISHED_EVENTS
from notifications.conditions import TABLE, UNFINISHED_EMAILS, Rows
from notifications.states.transitions import UNFINISHED
from orders.conditions import STUCK_ORDERS
from retention.conditions import PARTITIONS
from runtime import conditions
from runtime.conditions import CONNECTIONS, HEARTBEATS, PAUSES, read_facts
from runtime.database import server
from runtime.database.clock import read_database_time
from runtime.models import Pause
from runtime.telemetry.metrics import at_scrape


def gauge(name: str, text: str, label: str, values: Mapping[str, float | None]) -> GaugeMetricFamily:
    """Return a gauge with one label from its values by that label. Leave out values that are None."""
    family = GaugeMetricFamily(f"orderpost_{name}", text, labels=[label])
    for key, value in values.items():
        if value is not None:
            family.add_metric([key], value)
    return family


@at_scrape
def numbers() -> Iterator[GaugeMetricFamily]:
    facts = read_facts(now=read_database_time())
    yield from unfinished_rows(facts[UNFINISHED_EMAILS])
    events, connections = facts[UNFINISHED_EVENTS], facts[CONNECTIONS]
    for name, text, value in (
        ("relay_lag_events", "Events not yet published, without dead letters", events.unpublished),
        ("relay_lag_seconds", "Age of the oldest event not yet published", events.unpublished_seconds),
        ("relay_blocked_keys", "Aggregates whose events wait behind a refused one", events.blocked_keys),
        ("database_connections_left", "Connections that an ordinary role can still open", connections.left),
    ):
        yield GaugeMetricFamily(f"orderpost_{name}", text, value=value)
    paused = {one["part"] for one in facts[PAUSES]}
    values = {part.value: float(part.value in paused) for part in Pause.Part}
    yield gauge("paused", "1 if a person has paused the part, else 0", "part", values)
    stuck = {state: one.orders for state, one in facts[STUCK_ORDERS].items()}
    yield gauge("stuck_orders", f"Orders stuck in a state, counted up to {conditions.MOST}", "state", stuck)
    dead = {"out": events.dead, "in": events.dead_inbound}
    yield gauge("event_dead_letters", "Dead letters that nobody has resolved", "direction", dead)
    yield gauge(
        "heartbeat_age_seconds", "Time since a process last wrote its heartbeat", "name", facts[HEARTBEATS]
    )
    for name, text in (
        ("partitions_ahead_seconds", "Time until the end of the last partition that follows without a gap"),
        ("archive_overdue_seconds", "Time since the oldest month without an archive should have had one"),
    ):
        yield gauge(name, text, "table", {one.table: getattr(one, name) for one in facts[PARTITIONS]})
    yield gauge("database_connections", "Client connections of the server", "state", connections.by_state)


def unfinished_rows(rows: Rows) -> Iterator[GaugeMetricFamily]:
    family = GaugeMetricFamily(
        "orderpost_unfinished",
        f"Unfinished rows, counted up to {conditions.MOST}",
        labels=["table", "status"],
    )
    for status in UNFINISHED:
        family.add_metric([TABLE, status], getattr(rows, status))
    yield family
    for name, text, field in (
        ("held", "Failed rows that wait for evidence of an acceptance", "held"),
        ("oldest_unfinished_seconds", "Age of the oldest unfinished row, not held", "unfinished_seconds"),
        ("oldest_processing_seconds", "Age of the oldest current claim", "claimed_seconds"),
    ):
        yield gauge(name, text, "table", {TABLE: getattr(rows, field)})


@at_scrape
def sizes() -> Iterator[GaugeMetricFamily]:
    found = server.sizes()
    yield gauge("table_size_bytes", "Size with indexes, partitions and TOAST", "table", found.tables)
    yield GaugeMetricFamily("orderpost_database_size_bytes", "Size on disk", value=found.database)


@at_scrape
def replication_slots() -> Iterator[GaugeMetricFamily]:
    slots = server.replication_slots()
    kept, active = {one.name: one.kept for one in slots}, {one.name: int(one.is_active) for one in slots}
    yield gauge("replication_slot_kept_bytes", "WAL that a permanent slot keeps on the disk", "slot", kept)
    yield gauge("replication_slot_active", "1 if a client reads the permanent slot, else 0", "slot", active)
