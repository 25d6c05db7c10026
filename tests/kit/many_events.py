"""Write thousands of events, and record how often and in which order a consumer processes them."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg

from tests.kit import kafka
from tests.kit.recorder import FAULTS, TABLE
from tests.kit.shop import Shop

EVENTS = """
    INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, version, sequence, payload,
        metadata, shard, retry_count, last_error)
    SELECT (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || '7'
            || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15))::uuid,
        'test', lpad(to_hex(n %% %(aggregates)s + 1), 32, '0')::uuid, 'test.kind' || n %% 3 || '.v1', 1,
        n / %(aggregates)s, jsonb_build_object('n', n), '{}', (n %% %(aggregates)s) %% 64, 0, ''
    FROM generate_series(%(first)s::int, %(last)s::int) AS n
    ORDER BY n
"""
TOPICS = ["test.kind0.v1", "test.kind1.v1", "test.kind2.v1"]


def write_events(shop: Shop, *, first: int, count: int, aggregates: int) -> None:
    """Events of many aggregates, in the order of their sequences, past the application."""
    with psycopg.connect(shop.postgres.url, autocommit=True) as connection:
        connection.execute(EVENTS, {"first": first, "last": first + count - 1, "aggregates": aggregates})


LATE = (
    "SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY at - created_at),"
    " percentile_disc(0.99) WITHIN GROUP (ORDER BY at - created_at), max(at - created_at)"
    " FROM recorded JOIN outbox_events AS e ON e.id = event_id"
)


@contextlib.contextmanager
def shop_on_kafka(*, brokers: int = 3, **settings: Any) -> Iterator[tuple[Shop, kafka.Cluster]]:
    """Run a shop on a cluster with the test topics: six partitions, as many copies as brokers."""
    with (
        kafka.cluster(brokers=brokers) as cluster,
        Shop(EVENT_TRANSPORT="kafka", KAFKA_BOOTSTRAP_SERVERS=cluster.url, **settings) as shop,
    ):
        config = {"min.insync.replicas": str(max(1, brokers - 1))}
        for topic in TOPICS:
            cluster.make_topic(topic, partitions=6, copies=brokers, config=config)
        shop.query(TABLE)
        yield shop, cluster


def record(shop: Shop, name: str) -> None:
    """Start a consumer that records the test topics."""
    shop.spawn(name, [sys.executable, "-m", "tests.kit.recorder", "recorders", *TOPICS])


def recorded(shop: Shop) -> int:
    return int(shop.query("SELECT count(DISTINCT event_id) FROM recorded")[0][0])


def faults(shop: Shop) -> tuple[Any, ...]:
    """How many events are missing, doubled, strange, out of order, blamed for the broker, and dead."""
    return shop.query(FAULTS)[0]


def tell(shop: Shop, **more: object) -> None:
    """Print what was measured; `make drills ARGS="-s -q"` shows it."""
    p50, p99, most = (value.total_seconds() for value in shop.query(LATE)[0])
    repeats = shop.query("SELECT coalesce(sum(receive_count - 1), 0) FROM processed_events")[0][0]
    print(f"\ncommit to effect: p50 {p50:.3f} s, p99 {p99:.2f} s, most {most:.2f} s; repeats {repeats}", more)


def writing(
    shop: Shop, *, total: int, seconds: float, batch: int = 100, aggregates: int = 500, first: int = 0
) -> threading.Thread:
    """Start to write events, evenly, so many in a transaction."""

    def write() -> None:
        began = time.monotonic()
        for number in range(0, total, batch):
            write_events(shop, first=first + number, count=batch, aggregates=aggregates)
            time.sleep(max(0.0, began + (number + batch) * seconds / total - time.monotonic()))

    thread = threading.Thread(target=write)
    thread.start()
    return thread
