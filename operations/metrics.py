"""The engine's metrics from the database. runtime.telemetry.instruments has a process's counters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily

from runtime import facts
from runtime.conditions import Rows
from runtime.database import server
from runtime.database.clock import read_database_time
from runtime.facts import read_facts
from runtime.models import Pause
from runtime.telemetry import instruments  # noqa: F401 - declares them in every process
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
    found = read_facts(now=read_database_time())
    yield from unfinished_rows(found.rows)
    events, connections = found.events, found.connections
    for name, text, value in (
        ("relay_lag_events", "Events not yet published, without dead letters", events.unpublished),
        ("relay_lag_seconds", "Age of the oldest event not yet published", events.unpublished_seconds),
        ("relay_blocked_keys", "Aggregates whose events wait behind a refused one", events.blocked_keys),
        ("database_connections_left", "Connections that an ordinary role can still open", connections.left),
    ):
        yield GaugeMetricFamily(f"orderpost_{name}", text, value=value)
    paused = {one["part"] for one in found.paused}
    values = {part.value: float(part.value in paused) for part in Pause.Part}
    yield gauge("paused", "1 if a person has paused the part, else 0", "part", values)
    stuck = {state: one.orders for state, one in found.stuck.items()}
    yield gauge("stuck_orders", f"Orders stuck in a state, counted up to {facts.MOST}", "state", stuck)
    dead = {"out": events.dead, "in": events.dead_inbound}
    yield gauge("event_dead_letters", "Dead letters that nobody has resolved", "direction", dead)
    yield gauge("heartbeat_age_seconds", "Time since a process last wrote its heartbeat", "name", found.jobs)
    for name, text in (
        ("partitions_ahead_seconds", "Time until the end of the last partition that follows without a gap"),
        ("archive_overdue_seconds", "Time since the oldest month without an archive should have had one"),
    ):
        yield gauge(name, text, "table", {stock.table: getattr(stock, name) for stock in found.stocks})
    yield gauge("database_connections", "Client connections of the server", "state", connections.by_state)


def unfinished_rows(found: Mapping[str, Rows]) -> Iterator[GaugeMetricFamily]:
    rows = GaugeMetricFamily(
        "orderpost_unfinished",
        f"Unfinished rows, counted up to {facts.MOST}",
        labels=["table", "status"],
    )
    for table, one in found.items():
        for status in ("pending", "failed", "processing", "dead_lettered"):
            rows.add_metric([table, status], getattr(one, status))
    yield rows
    for name, text, field in (
        ("held", "Failed rows that wait for evidence of an acceptance", "held"),
        ("oldest_unfinished_seconds", "Age of the oldest unfinished row, not held", "unfinished_seconds"),
        ("oldest_processing_seconds", "Age of the oldest current claim", "claimed_seconds"),
    ):
        yield gauge(name, text, "table", {table: getattr(one, field) for table, one in found.items()})


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
