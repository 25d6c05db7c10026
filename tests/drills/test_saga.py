"""The saga over each broker, with examples/services.py as the other services: placed, paid, confirmed.

Drills: they print how long a saga takes, from the commit of the order to the consumer of its confirmation.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from examples.services import Streams, Topics
from tests.kit import kafka
from tests.kit.shop import Shop

pytestmark = [pytest.mark.flow, pytest.mark.drill]

ORDERS, PER_SECOND, RARE_EVERY = 150, 5.0, 10


@contextlib.contextmanager
def shop_on(transport: str) -> Iterator[Shop]:
    if transport == "redis":
        with Shop() as shop:
            yield shop
        return
    with (
        kafka.cluster() as cluster,
        Shop(EVENT_TRANSPORT="kafka", KAFKA_BOOTSTRAP_SERVERS=cluster.url) as shop,
    ):
        said = shop.manage("make_topics", *kafka.ONE_BROKER_OPTIONS)
        assert said.count(": made") == len(said.splitlines())
        yield shop


class Fulfilment(threading.Thread):
    """Notes when each order's confirmation arrives."""

    def __init__(self, broker: Streams | Topics) -> None:
        super().__init__()
        self.broker, self.at = broker, dict[str, float]()
        self.stopped = threading.Event()

    def run(self) -> None:
        while not self.stopped.is_set():
            for value in self.broker.receive():
                self.at.setdefault(json.loads(value)["data"]["orderId"], time.time())
        self.broker.close()


def place(shop: Shop, *, sku: str) -> str:
    items = [{"sku": sku, "name": "A thing", "quantity": 2, "unit_amount": 2100}]
    body = {"user_id": str(uuid.uuid4()), "email": "ann@example.com", "total_amount": 4200, "items": items}
    answer = shop.call("POST", "/orders", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


@pytest.mark.parametrize("transport", ["redis", "kafka"])
def test_a_saga_confirms_an_order_or_cancels_and_refunds_it(transport, monkeypatch):
    with shop_on(transport) as shop:
        shop.start("web", "relay", "consumer")
        services = [sys.executable, "examples/services.py"]
        shop.spawn("services", services, PYTHONUNBUFFERED="1")
        for name, value in shop.environment().items():
            monkeypatch.setenv(name, value)
        broker: Any = Topics if transport == "kafka" else Streams
        fulfilment = Fulfilment(broker("fulfilment-service", ["order.order.confirmed.v1"]))
        fulfilment.start()
        try:
            warm = place(shop, sku="pen")
            shop.until(lambda: warm in fulfilment.at, "the first saga ends")
            orders = {}
            for number in range(ORDERS):
                rare = number % RARE_EVERY == 0
                orders[place(shop, sku=f"rare-{number}" if rare else "pen")] = (
                    f"rare-{number}" if rare else ""
                )
                time.sleep(1 / PER_SECOND)
            good = [order for order, rare in orders.items() if not rare]
            shop.until(lambda: set(good) <= fulfilment.at.keys(), "all sagas end")
            refunded = "SELECT count(*) FROM orders WHERE status = 'cancelled' AND refunded_amount = 4200"
            shop.until(
                lambda: shop.query(refunded) == [(len(orders) - len(good),)], "all others are refunded"
            )
        finally:
            fulfilment.stopped.set()
            fulfilment.join()
        assert shop.query("SELECT status, count(*) FROM orders GROUP BY 1 ORDER BY 1") == [
            ("cancelled", len(orders) - len(good)),
            ("confirmed", len(good) + 1),
        ]
        assert shop.query("SELECT count(*) FROM inbound_dead_letters") == [(0,)]
        cancelled = dict(
            shop.query(
                "SELECT aggregate_id::text, payload->>'productId' FROM outbox_events"
                " WHERE event_type = 'order.order.cancelled.v1'"
                " AND payload->>'reason' = 'INSUFFICIENT_STOCK' AND (payload->>'wasPaid')::bool"
            )
        )
        assert cancelled == {order: rare for order, rare in orders.items() if rare}
        placed = dict(
            shop.query(
                "SELECT aggregate_id::text, extract(epoch FROM created_at)::float FROM outbox_events"
                " WHERE event_type = 'order.order.placed.v1'"
            )
        )
        took = sorted(fulfilment.at[order] - placed[order] for order in good)
        p50, p99 = took[len(took) // 2], took[int(len(took) * 0.99)]
        print(
            f"\n{transport}: {len(took)} sagas at {PER_SECOND:g} a second:"
            f" p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, most {took[-1] * 1000:.0f} ms"
        )
