"""Three real brokers that get killed while events flow: what is consumed equals the outbox, once, in order.

Drills, minutes each. One broker, in every `make test`: tests/brokers/test_kafka.py.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.flows.recorder import FAULTS, TABLE
from tests.flows.test_events import TOPICS, unpublished, write_events
from tests.kit import kafka
from tests.kit.shop import Shop

pytestmark = [pytest.mark.flow, pytest.mark.drill]

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
    shop.spawn(name, [sys.executable, "-m", "tests.flows.recorder", "recorders", *TOPICS])


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
    shop: Shop, *, total: int, seconds: float, batch: int = 100, aggregates: int = 500
) -> threading.Thread:
    """Start to write events, evenly, so many in a transaction."""

    def write() -> None:
        began = time.monotonic()
        for first in range(0, total, batch):
            write_events(shop, first=first, count=batch, aggregates=aggregates)
            time.sleep(max(0.0, began + (first + batch) * seconds / total - time.monotonic()))

    thread = threading.Thread(target=write)
    thread.start()
    return thread


def test_ten_thousand_events_pass_leaders_killed_every_ten_seconds_and_a_rebalance():
    with shop_on_kafka() as (shop, cluster):
        shop.start("relay:1", "relay:2")
        record(shop, "recorder:1")
        record(shop, "recorder:2")
        writer = writing(shop, total=10_000, seconds=75)
        kills = 0
        began = time.monotonic()
        while writer.is_alive():
            victim = cluster.leader(TOPICS[kills % 3], kills % 6)
            if victim > 0:
                cluster.kill(victim)
                kills += 1
                if kills == 3:  # a rebalance in the middle, while a broker is down
                    record(shop, "recorder:3")
                    shop.kill("recorder:1")
                cluster.start(victim)
            time.sleep(max(0.2, began + kills * 10 - time.monotonic()))
        shop.until(lambda: recorded(shop) == 10_000, "all are recorded")
        tell(shop, kills=kills)
        assert kills >= 4
        assert faults(shop) == (0, 0, 0, 0, 0, 0)


def test_with_two_of_three_brokers_killed_nothing_acknowledged_is_lost_and_it_goes_on_after():
    with shop_on_kafka() as (shop, cluster):
        shop.start("relay")
        record(shop, "recorder:1")
        writer = writing(shop, total=3000, seconds=30)
        time.sleep(5)
        cluster.kill(1, 2)
        shop.until(
            lambda: "broker away" in shop.log("relay") or "topic unavailable" in shop.log("relay"),
            "the relay noticed",
        )
        writer.join()
        assert unpublished(shop) > 0
        cluster.start(1, 2)
        shop.until(lambda: recorded(shop) == 3000, "all are recorded")
        tell(shop)
        assert faults(shop) == (0, 0, 0, 0, 0, 0)
