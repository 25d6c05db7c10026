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
    found = replica.read(server.sizes)
    yield TABLE_SIZE.family(found.tables)
    yield DATABASE_SIZE.family(found.database)


@at_scrape
def replication_slots() -> Iterator[GaugeMetricFamily]:
    slots = server.replication_slots()
    yield SLOT_KEPT.family({one.name: one.kept for one in slots})
    yield SLOT_ACTIVE.family({one.name: int(one.is_active) for one in slots})
