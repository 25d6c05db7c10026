"""The engine's metrics that the database has. The counters of a process are in outbox.core.instruments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily

from outbox import backlog, database_facts
from outbox.core import instruments  # noqa: F401 - every process shows them
from outbox.core.clock import database_now
from outbox.core.metrics import at_scrape
from outbox.models import Pause
from outbox.retention import partitions
from outbox.retention.overdue import archives


def gauge(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """Make a gauge with one label from its values by that label."""
    family = GaugeMetricFamily(f"orderpost_{name}", text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


@at_scrape
def unfinished_rows() -> Iterator[GaugeMetricFamily]:
    models = {model._meta.db_table: model for model in backlog.deliverables()}
    found = {table: backlog.rows_of(model) for table, model in models.items()}
    rows = GaugeMetricFamily(
        "orderpost_unfinished",
        f"Rows that are not finished, counted to at most {backlog.MOST}",
        labels=["table", "status"],
    )
    for table, one in found.items():
        for status in ("pending", "failed", "processing", "dead_lettered"):
            rows.add_metric([table, status], getattr(one, status))
    yield rows
    for name, text, field in (
        ("held", "Failed rows that wait for evidence of an acceptance", "held"),
        ("oldest_due_seconds", "How long the longest-waiting row has been due", "due_seconds"),
        ("oldest_unfinished_seconds", "Age of the oldest unfinished row, not held", "unfinished_seconds"),
        ("oldest_held_seconds", "Age of the oldest held row", "held_seconds"),
        ("oldest_processing_seconds", "How long ago the oldest present claim was taken", "claimed_seconds"),
    ):
        yield gauge(name, text, "table", {table: getattr(one, field) for table, one in found.items()})
    yield gauge(
        "due_query_duration_seconds",
        "Time of the query that finds the next due rows",
        "table",
        {table: backlog.due_query_seconds(model) for table, model in models.items()},
    )


@at_scrape
def event_backlog() -> Iterator[GaugeMetricFamily]:
    found = backlog.events()
    for name, text, value in (
        ("relay_lag_events", "Events not yet published, dead ones not counted", found.unpublished),
        ("relay_lag_seconds", "Age of the oldest event not yet published", found.unpublished_seconds),
        ("relay_blocked_keys", "Aggregates whose events wait behind a refused one", found.blocked_keys),
    ):
        yield GaugeMetricFamily(f"orderpost_{name}", text, value=value)
    dead = {"out": found.dead, "in": found.dead_inbound}
    yield gauge("dead_events", "Dead letters that nobody has resolved", "direction", dead)


@at_scrape
def pauses() -> Iterator[GaugeMetricFamily]:
    paused = set(Pause.objects.values_list("part", flat=True))
    values = {part.value: float(part.value in paused) for part in Pause.Part}
    yield gauge("paused", "1 while somebody has paused it, else 0", "part", values)


@at_scrape
def heartbeats() -> Iterator[GaugeMetricFamily]:
    ages = backlog.heartbeat_ages()
    if "poll" in ages:
        yield GaugeMetricFamily(
            "orderpost_poll_age_seconds", "Since the outbox was last polled", value=ages["poll"]
        )
    yield gauge("heartbeat_age_seconds", "Since a process last wrote its heartbeat", "name", ages)


@at_scrape
def partitions_and_archives() -> Iterator[GaugeMetricFamily]:
    now = database_now()
    attached = {model: partitions.attached(model=model) for model in partitions.partitioned_models()}
    stock = {
        model._meta.db_table: partitions.unbroken(model=model, now=now, among=found)
        for model, found in attached.items()
    }
    yield gauge(
        "partitions_ahead",
        "Partitions made after the present one; -1 when even that is missing",
        "table",
        {table: len(found) - 1 for table, found in stock.items()},
    )
    yield gauge(
        "partitions_ahead_seconds",
        "Until the last partition that follows without a gap ends",
        "table",
        {table: (found[-1].until - now).total_seconds() if found else 0.0 for table, found in stock.items()},
    )
    found = {
        model._meta.db_table: archives(model=model, now=now, attached=attached[model]) for model in attached
    }
    ages = {table: one.age_seconds for table, one in found.items() if one.age_seconds is not None}
    yield gauge("archive_age_seconds", "Since the newest archive was written", "table", ages)
    overdue = {table: one.overdue for table, one in found.items()}
    yield gauge("archive_overdue", "Partitions over their hot days without an archive", "table", overdue)
    since = {table: one.overdue_seconds for table, one in found.items()}
    yield gauge("archive_overdue_seconds", "For how long the oldest of them is overdue", "table", since)


@at_scrape
def postgresql() -> Iterator[GaugeMetricFamily]:
    sizes, connections = database_facts.sizes(), database_facts.connections()
    yield gauge("table_size_bytes", "Size with indexes, partitions and TOAST", "table", sizes.tables)
    yield GaugeMetricFamily("orderpost_database_size_bytes", "Size on disk", value=sizes.database)
    yield gauge("database_connections", "Client connections of the server", "state", connections.by_state)
    yield GaugeMetricFamily(
        "orderpost_database_connections_left",
        "How many more an ordinary role can open",
        value=connections.left,
    )
    yield GaugeMetricFamily(
        "orderpost_database_oldest_transaction_seconds",
        "Age of the longest open transaction",
        value=connections.oldest_transaction_seconds,
    )


@at_scrape
def replication_slots() -> Iterator[GaugeMetricFamily]:
    slots = database_facts.slots()
    kept, active = {one.name: one.kept for one in slots}, {one.name: int(one.active) for one in slots}
    yield gauge("replication_slot_kept_bytes", "WAL that a lasting slot keeps on the disk", "slot", kept)
    yield gauge("replication_slot_active", "Whether somebody reads a lasting slot", "slot", active)
