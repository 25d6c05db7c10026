"""Events with real relays and consumers that get killed: none missing, in order, each in effect once."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import defaultdict
from typing import Any

import psycopg
import pytest
import redis

from tests.kit.many_events import TOPICS, write_events
from tests.kit.shop import PAYMENT, Shop, payment_event

pytestmark = pytest.mark.flow


def published(shop: Shop) -> list[tuple[str, dict[str, Any]]]:
    """Every entry of the test topics: topic and envelope, topic by topic in the stream's order."""
    with redis.Redis.from_url(shop.valkey.url) as client:
        return [
            (topic, json.loads(fields[b"value"])) for topic in TOPICS for _, fields in client.xrange(topic)
        ]


def assert_in_order(entries: list[tuple[str, dict[str, Any]]], *, count: int) -> None:
    """Nothing is missing; after dropping repeats each aggregate's sequences grow within a topic."""
    seen: set[str] = set()
    sequences: dict[tuple[str, int], list[int]] = defaultdict(list)
    for topic, event in entries:
        if event["eventId"] not in seen:
            seen.add(event["eventId"])
            sequences[topic, event["data"]["n"] % 500].append(event["metadata"]["sequence"])
    assert len(seen) == count
    assert all(numbers == sorted(numbers) for numbers in sequences.values())


@pytest.mark.drill
def test_three_relays_killed_every_few_seconds_lose_nothing_and_keep_each_aggregates_order():
    with Shop() as shop:
        shop.start("relay:1", "relay:2", "relay:3")
        total, chance = 20_000, random.Random(7)
        for part in range(10):
            write_events(shop, first=part * 2000, count=2000, aggregates=500)
            victim = f"relay:{chance.randint(1, 3)}"
            shop.kill(victim)
            shop.start(victim)
            shop.until(shop.all_published, "the part is published")
        shop.until(shop.all_published, "all is published")
        assert_in_order(published(shop), count=total)


def test_a_broker_that_is_killed_and_comes_back_gets_everything_in_order_and_nothing_is_dead():
    with Shop() as shop:
        shop.start("relay")
        write_events(shop, first=0, count=1000, aggregates=500)
        shop.until(shop.all_published, "the first are published")
        before = published(shop)
        shop.valkey.stop()
        write_events(shop, first=1000, count=2000, aggregates=500)
        shop.until(lambda: "broker away" in shop.log("relay"), "the relay has noticed")
        shop.valkey.start(log=shop.folder / "valkey.log")
        shop.until(shop.all_published, "the rest is published")
        with psycopg.connect(shop.postgres.url, autocommit=True) as connection:
            tried = connection.execute("SELECT max(retry_count), count(dead_lettered_at) FROM outbox_events")
            assert tried.fetchone() == (0, 0)
        after = published(shop)
        entries = after if len(after) >= 3000 else before + after  # a throw-away server forgets
        assert_in_order(entries, count=3000)


def test_a_change_is_on_the_broker_within_a_second_of_its_commit(shared_shop):
    with redis.Redis.from_url(shared_shop.valkey.url) as client:

        def placed() -> list[str]:
            entries: Any = client.xrange("order.order.placed.v1")
            return [json.loads(fields[b"value"])["data"]["orderId"] for _, fields in entries]

        order = shared_shop.place()
        shared_shop.until(lambda: order in placed(), "it is there")
        assert placed().count(order) == 1


def test_a_consumer_killed_between_its_commit_and_its_acknowledgement_has_the_effect_once(shared_shop):
    shop = shared_shop
    shop.start("consumer")
    orders = [shop.place(f"c{n}@example.com") for n in range(200)]

    def tell() -> None:
        with redis.Redis.from_url(shop.valkey.url) as client:
            for order in orders:
                event = payment_event(order)
                for _ in range(2):  # the broker may repeat, too
                    client.xadd(PAYMENT, event)
                time.sleep(0.02)

    teller = threading.Thread(target=tell)
    teller.start()
    while teller.is_alive():
        teller.join(1.5)
        shop.kill("consumer")
        shop.start("consumer")
    paid = "SELECT count(*) FROM orders WHERE status = 'paid'"
    shop.until(lambda: shop.query(paid) == [(200,)], "all are paid")
    shop.kill("consumer")
    assert shop.query("SELECT count(*) FROM orders WHERE version <> 2") == [(0,)]
    assert shop.query("SELECT count(*) FROM inbound_dead_letters") == [(0,)]
    assert shop.rows("correlation_id = 'saga-' || order_id") == [(True,)] * 200
