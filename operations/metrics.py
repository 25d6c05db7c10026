"""The metrics that are read from the database at each scrape: the facts of all apps, sizes, and slots."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily

from runtime.conditions import families, read_facts
from runtime.database import replica, server
from runtime.database.clock import read_database_time
from runtime.telemetry.metrics import at_scrape, gauge

TABLE_SIZE = gauge("orderpost_table_size_bytes", "table with indexes, partitions and TOAST", ["table"])
DATABASE_SIZE = gauge("orderpost_database_size_bytes", "database on disk")
SLOT_KEPT = gauge(
    "orderpost_replication_slot_kept_bytes", "WAL kept for a lasting slot; 0 if it is lost", ["slot"]
)
SLOT_ACTIVE = gauge("orderpost_replication_slot_active", "1 while a client reads a lasting slot", ["slot"])


@at_scrape
def numbers() -> Iterator[GaugeMetricFamily]:
    now = read_database_time()
    yield from families(replica.read(lambda: read_facts(now=now)))


@at_scrape
def sizes() -> Iterator[GaugeMetricFamily]:
    sizes = replica.read(server.sizes)
    yield TABLE_SIZE.family(sizes.tables)
    yield DATABASE_SIZE.family(sizes.database)


@at_scrape
def replication_slots() -> Iterator[GaugeMetricFamily]:
    slots = server.replication_slots()
    yield SLOT_KEPT.family({slot.name: slot.kept for slot in slots})
    yield SLOT_ACTIVE.family({slot.name: int(slot.is_active) for slot in slots})
