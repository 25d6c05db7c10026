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

from tests.kit.shop import PAYMENT, REFUNDED, Shop, payment_event, refund_event

pytestmark = pytest.mark.flow

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


def unpublished(shop: Shop) -> int:
    with psycopg.connect(shop.postgres.url, autocommit=True) as connection:
        found = connection.execute("SELECT count(*) FROM outbox_events WHERE published_at IS NULL")
        return int(found.fetchall()[0][0])


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
            shop.until(lambda: unpublished(shop) < 1000, "less than half of a part is left")
        shop.until(lambda: unpublished(shop) == 0, "all is published")
        assert_in_order(published(shop), count=total)


def test_a_broker_that_is_killed_and_comes_back_gets_everything_in_order_and_nothing_is_dead():
    with Shop() as shop:
        shop.start("relay")
        write_events(shop, first=0, count=1000, aggregates=500)
        shop.until(lambda: unpublished(shop) == 0, "the first are published")
        before = published(shop)
        shop.valkey.stop()
        write_events(shop, first=1000, count=2000, aggregates=500)
        shop.until(lambda: "broker away" in shop.log("relay"), "the relay has noticed")
        shop.valkey.start(log=shop.folder / "valkey.log")
        shop.until(lambda: unpublished(shop) == 0, "the rest is published")
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


def test_a_consumer_killed_between_its_commit_and_its_acknowledgement_has_the_effect_once():
    with Shop() as shop:
        shop.start("web", "consumer")
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
        with psycopg.connect(shop.postgres.url, autocommit=True) as connection:

            def one(sql: str) -> Any:
                return connection.execute(sql).fetchone()[0]

            shop.until(
                lambda: one("SELECT count(*) FROM orders WHERE status = 'paid'") == 200,
                "all are paid",
                seconds=90,
            )
            assert one("SELECT count(*) FROM orders WHERE version <> 2") == 0
            assert one("SELECT count(*) FROM email_notifications") == 200
            assert one("SELECT count(*) FROM dead_events") == 0
            mails = "SELECT count(*) FROM email_notifications WHERE correlation_id = 'saga-' || order_id"
            assert one(mails) == 200


@pytest.mark.drill
def test_three_consumers_killed_again_and_again_keep_each_orders_refunds_in_order():
    """Shared by the members of a group, the entries of one order would be processed side by side."""
    with Shop() as shop:
        shop.start("web", "consumer:1", "consumer:2", "consumer:3")
        orders = [shop.place(f"c{n}@example.com") for n in range(10)]
        for order in orders:
            shop.pay(order)
        with redis.Redis.from_url(shop.valkey.url) as client:
            for amount in range(1, 41):
                for order in orders:
                    client.xadd(REFUNDED, refund_event(order, amount))
                if amount % 10 == 0:
                    victim = f"consumer:{amount // 10 % 3 + 1}"
                    shop.kill(victim)
                    shop.start(victim)
        refunds = "SELECT count(*) FROM outbox_events WHERE event_type = 'order.order.part_refunded.v1'"
        shop.until(lambda: shop.query(refunds) == [(400,)], "all are refunded")
        by_version = (
            "SELECT aggregate_id, array_agg((payload->>'amount')::int ORDER BY sequence) FROM outbox_events"
            " WHERE event_type = 'order.order.part_refunded.v1' GROUP BY 1"
        )
        found = shop.query(by_version)
        assert len(found) == 10
        assert all(amounts == list(range(1, 41)) for _, amounts in found), found
        assert shop.query("SELECT count(*) FROM dead_events") == [(0,)]
