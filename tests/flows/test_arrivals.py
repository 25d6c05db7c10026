"""Payments and parcels over streams and topics, in each order of arrival and after a stop of the consumer."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Sequence

import confluent_kafka
import pytest
import redis

from tests.flows.test_turns import find_disorder, find_doubled
from tests.kit import kafka
from tests.kit.arrivals import ITEMS, STEPS, TOPICS, Expected, event_of, read_facts
from tests.kit.shop import Shop
from tests.kit.words import EMAILS

pytestmark = pytest.mark.flow

SETTINGS = {"NOTIFY_ON": ",".join(EMAILS), "EVENT_COMMANDS": "on", "EMAIL_RATE_LIMIT": "0"}
PROCESSED = "SELECT count(*) FROM processed_events"
EVERY = list(itertools.permutations(STEPS))


class Broker:
    """Writes events to the broker of a shop, each topic's to its own stream or topic."""

    def __init__(self, shop: Shop) -> None:
        self.client = redis.Redis.from_url(shop.valkey.url)
        servers = shop.settings.get("KAFKA_BOOTSTRAP_SERVERS")
        self.producer = confluent_kafka.Producer({"bootstrap.servers": servers}) if servers else None

    def write(self, step: str, order: str) -> None:
        value = json.dumps(event_of(step, order))
        if self.producer is None:
            self.client.xadd(TOPICS[step], {"key": order, "value": value})
        else:
            self.producer.produce(TOPICS[step], key=order, value=value)

    def flush(self) -> None:
        assert self.producer is None or self.producer.flush(60) == 0


def place(shop: Shop, count: int) -> list[str]:
    orders = []
    for number in range(count):
        body = {
            "user_id": str(uuid.uuid4()),
            "email": f"u{number}@example.com",
            "total_amount": 1000,
            "items": ITEMS,
        }
        answer = shop.call("POST", "/orders", json=body)
        assert answer.status_code == 201, answer.text
        orders.append(answer.json()["id"])
    return orders


def play_each_arrival(shop: Shop, arrivals: Sequence[tuple[str, ...]]) -> None:
    """Give each order its events one after another, so that they arrive in the given order."""
    shop.settings |= SETTINGS
    shop.start("web", "consumer")
    orders = dict(zip(place(shop, len(arrivals)), arrivals, strict=True))
    broker = Broker(shop)
    for number in range(len(STEPS)):
        for order, arrival in orders.items():
            broker.write(arrival[number], order)
        broker.flush()
        wanted = [(len(orders) * (number + 1),)]
        shop.until(
            lambda wanted=wanted: shop.query(PROCESSED) == wanted,  # type: ignore[misc]
            "each order has taken its next event",
        )
    facts = read_facts(shop.query)
    for order, arrival in orders.items():
        assert facts[order] == Expected.after(arrival).facts(), arrival
    refused = sum(len(Expected.after(arrival).refused) for arrival in arrivals)
    assert shop.query("SELECT count(*) FROM inbound_dead_letters") == [(refused,)]


def play_a_stop(shop: Shop, orders: int) -> None:
    """Let a backlog of parcels and payments be read at once, by a consumer that is killed three times."""
    shop.settings |= SETTINGS | {"EVENT_COMMANDS": "off"}
    shop.start("web", "consumer", "worker", "beat")
    ids = place(shop, orders)
    broker = Broker(shop)
    broker.write("paid", ids[0])
    broker.flush()
    paid = "SELECT count(*) FROM orders WHERE status = 'paid'"
    shop.until(lambda: shop.query(paid) == [(1,)], "the consumer works")
    shop.kill("consumer")
    for step in ("created", "delivered", "paid"):
        for order in ids[1:]:
            broker.write(step, order)
    broker.flush()
    shop.start("consumer")
    for number in range(1, 4):  # killed wherever it is
        least = number * orders // 2
        shop.until(lambda least=least: shop.query(PROCESSED) >= [(least,)], "it has gone on")  # type: ignore[misc]
        shop.kill("consumer")
        shop.start("consumer")
    wanted = [(3 * orders - 2,)]
    shop.until(lambda: shop.query(PROCESSED) == wanted, "the backlog is processed")
    shop.until(lambda: {"pending", "processing", "failed"}.isdisjoint(shop.statuses()), "all is sent")
    facts = read_facts(shop.query)
    changes = ["order.placed", "order.paid", "order.shipped", "order.delivered"]
    for order in ids[1:]:
        assert facts[order]["events"] == list(enumerate(changes, 1))
        assert facts[order]["warnings"] == [] and facts[order]["fulfilment"] == "part_shipped"
        read = [event for _, event in facts[order]["emails"]]
        assert read in (changes, [*changes[:2], "order.delivered"]), "a delivery may be known before"
    assert shop.query("SELECT count(*) FROM inbound_dead_letters") == [(0,)]
    assert find_disorder(shop) == [] and find_doubled(shop) == []


def test_orders_over_streams_end_alike_in_sixty_orders_of_arrival():
    with Shop() as shop:
        play_each_arrival(shop, EVERY[::12])


def test_after_a_stop_and_kills_of_the_consumer_each_customer_reads_of_the_payment_first():
    with Shop() as shop:
        play_a_stop(shop, 13)


@pytest.mark.drill
def test_orders_over_streams_end_alike_in_each_order_of_arrival():
    with Shop() as shop:
        play_each_arrival(shop, EVERY)


@pytest.mark.drill
def test_orders_over_kafkas_topics_end_alike_in_each_order_of_arrival_and_after_a_stop():
    with kafka.cluster() as broker:
        transport = {"EVENT_TRANSPORT": "kafka", "KAFKA_BOOTSTRAP_SERVERS": broker.url}
        with Shop(**transport) as shop:
            shop.settings |= SETTINGS
            shop.manage("make_topics", *kafka.ONE_BROKER_OPTIONS)
            play_each_arrival(shop, EVERY)
    with kafka.cluster() as broker:
        transport = {"EVENT_TRANSPORT": "kafka", "KAFKA_BOOTSTRAP_SERVERS": broker.url}
        with Shop(**transport) as shop:
            shop.manage("make_topics", *kafka.ONE_BROKER_OPTIONS)
            play_a_stop(shop, 13)
