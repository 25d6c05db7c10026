"""Parcels by the API, a broker and another system, shuffled, doubled and under kills: each counts once."""

from __future__ import annotations

import json
import random
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
import redis
import requests

from tests.flows.test_turns import find_disorder, find_doubled
from tests.kit import kafka
from tests.kit.events import SHOP, envelope, told
from tests.kit.shop import Shop
from tests.kit.waiting import until
from tests.kit.words import EMAILS

pytestmark = pytest.mark.flow

ITEMS = [
    {"sku": "MUG", "name": "Mug", "quantity": 2, "unit_amount": 1000},
    {"sku": "TEA", "name": "Tea", "quantity": 1, "unit_amount": 2200},
]
LINES = {"P-1": [{"item": 0, "quantity": 1}], "P-2": [{"item": 0, "quantity": 1}, {"item": 1, "quantity": 1}]}
VICTIMS = ("consumer", "worker:1", "web")
SETTINGS = {
    "NOTIFY_ON": ",".join(EMAILS),
    "ORDER_SOURCES": SHOP,
    "EMAIL_RATE_LIMIT": "0",
    "RETRY_BACKOFF_CAP": "3",
    "MAX_RETRIES": "50",
}
Report = Callable[[], object]


class Reporter:
    """Sends each report of a parcel in one of the ways, until it is answered or on the broker."""

    def __init__(self, shop: Shop, chance: random.Random) -> None:
        self.shop, self.chance = shop, chance
        self.client = redis.Redis.from_url(shop.valkey.url)
        servers = shop.settings.get("KAFKA_BOOTSTRAP_SERVERS")
        self.producer = confluent_kafka.Producer({"bootstrap.servers": servers}) if servers else None

    def call(self, path: str, body: Any, key: str) -> dict[str, Any]:
        """Post with a key until it is answered: a web process may have been killed."""
        answers: list[dict[str, Any]] = []

        def is_answered() -> bool:
            try:
                answer = self.shop.call("POST", path, json=body, headers={"Idempotency-Key": key})
            except requests.RequestException:
                return False
            if answer.status_code in (409, 503):  # the killed one's transaction still holds the order
                return False
            assert answer.status_code in (200, 201), answer.text
            answers.append(answer.json())
            return True

        until(is_answered, f"{path} is answered")
        return answers[-1]

    def write(self, event: dict[str, Any]) -> None:
        topic = event["eventType"]
        value: dict[Any, Any] = {"key": event["data"]["orderId"], "value": json.dumps(event)}
        if self.producer is None:
            self.client.xadd(topic, value)
            return
        self.producer.produce(topic, **value)
        assert self.producer.flush(30) == 0

    def tell(self, event: dict[str, Any]) -> None:
        """Send an event over HTTP or by the broker, and half of them both ways."""
        if over_http := self.chance.random() < 0.5:
            self.shop.send_events([event])
        if not over_http or self.chance.random() < 0.5:
            self.write(event)

    def place(self, number: int) -> str:
        values: dict[str, Any] = {"email": f"own{number}@example.com", "total_amount": 4200, "items": ITEMS}
        body = {"user_id": str(uuid.uuid4()), **values}
        order: str = self.call("/orders", body, f"place-{number}")["id"]
        self.call(f"/orders/{order}/pay", {}, f"pay-{number}")
        return order

    def of_own(self, order: str) -> list[Report]:
        """Return the reports of an order of ours: the shop tells of one parcel, the warehouse of both."""
        events = []
        for reference, lines in LINES.items():
            for change, more in (("created", {"lines": lines}), ("delivered", {}), ("returned", {})):
                if (reference, change) != ("P-1", "returned"):
                    topic = f"fulfilment.shipment.{change}.v1"
                    events.append(envelope(topic, {"orderId": order, "reference": reference, **more}))
        body = {"reference": "P-1", "lines": LINES["P-1"]}
        path = f"/orders/{order}/shipments"
        return [*[lambda: self.call(path, body, f"ship-{order}")] * 2, *self.doubled(events)]

    def of_other(self, number: int) -> list[Report]:
        """Return the reports of an order of another system, which was paid before."""
        items = [{"sku": "MUG", "name": "Mug", "quantity": 2, "unitAmount": 1000}]
        values: dict[str, Any] = {
            "email": f"other{number}@example.com",
            "items": items,
            "userId": str(uuid.uuid4()),
        }
        order = f"W-{number}"
        self.tell(told("paid", order, 2, **values))
        lines = [{"item": 0, "quantity": 1}]
        first, second = ({"reference": reference, "lines": lines} for reference in ("P-1", "P-2"))
        done = {"deliveredAt": "2026-11-26T10:00:00Z"}
        reports = [(3, first), (4, second), (5, first | {"trackingNumber": "42"}), (6, first | done)]
        return self.doubled(
            [told("shipped", order, sequence, **values, shipment=parcel) for sequence, parcel in reports]
        )

    def doubled(self, events: list[dict[str, Any]]) -> list[Report]:
        return [lambda event=event: self.tell(event) for event in (*events, *events)]  # type: ignore[misc]


def play(shop: Shop, *, orders: int, kills: int) -> None:
    chance = random.Random(76)
    shop.settings |= SETTINGS
    shop.start("web", "beat", *VICTIMS[:2])
    reporter = Reporter(shop, chance)
    reports: list[Report] = []
    for number in range(orders):
        reports += reporter.of_own(reporter.place(number)) + reporter.of_other(number)
    paid = "SELECT count(*) FROM orders WHERE paid_at IS NOT NULL"
    shop.until(lambda: shop.query(paid) == [(2 * orders,)], "each order is paid")
    chance.shuffle(reports)
    for number, report in enumerate(reports, 1):
        report()
        if number % (len(reports) // kills) == 0:
            name = VICTIMS[number // (len(reports) // kills) % len(VICTIMS)]
            shop.kill(name)
            shop.start(name, wait=False)
    told_of = "SELECT count(*) FROM shipments WHERE shipped_at IS NOT NULL"
    shop.until(lambda: shop.query(told_of) == [(4 * orders,)], "each parcel is stored")
    ended = "SELECT count(delivered_at), count(returned_at) FROM shipments"
    shop.until(lambda: shop.query(ended) == [(3 * orders, orders)], "each end is stored")
    shop.until(lambda: {"pending", "processing", "failed"}.isdisjoint(shop.statuses()), "all is sent")
    assert set(shop.statuses()) == {"sent"}
    check(shop, orders)


def check(shop: Shop, orders: int) -> None:
    """Check quantities, warnings, published events and e-mails."""
    assert shop.query("SELECT count(*) FROM inbound_dead_letters") == [(0,)]
    assert shop.query("SELECT count(*) FROM orders WHERE warnings <> '[]'") == [(0,)]
    stored = Counter(
        (source != "", reference, json.dumps(lines))
        for source, reference, lines in shop.query(
            "SELECT source, shipments.reference, lines FROM shipments JOIN orders ON orders.id = order_id"
        )
    )
    assert stored == Counter(
        {(False, name, json.dumps(lines)): orders for name, lines in LINES.items()}
        | {(True, name, json.dumps(LINES["P-1"])): orders for name in LINES}
    )
    # P-2 of ours came back, and nobody told that P-2 of theirs was delivered.
    states = shop.query("SELECT source, fulfilment, count(*) FROM orders GROUP BY 1, 2")
    assert sorted(states) == [("", "part_shipped", orders), (SHOP, "shipped", orders)]
    versions = "SELECT version FROM orders AS o WHERE source = '' AND version <> (SELECT count(*)"
    assert shop.query(f"{versions} FROM outbox_events WHERE aggregate_id = o.id)") == []
    published = Counter(
        row
        for row in shop.query("SELECT aggregate_id, event_type, payload->>'shipmentId' FROM outbox_events")
    )
    assert set(published.values()) == {1}, "an event was published twice"
    paid = "SELECT order_id FROM email_notifications WHERE event_type = 'order.paid'"
    emails = Counter(shop.query(paid))
    assert len(emails) == 2 * orders and set(emails.values()) == {1}
    own = "SELECT id FROM orders WHERE source = ''"
    mailed = "SELECT count(*) FROM email_notifications WHERE event_type ="
    # Each event about our parcels has an e-mail, unless the change that told of it told of a later one, too.
    # No delivery is news after a return.
    later = (
        "SELECT count(*) FROM outbox_events AS e WHERE event_type = '{}' AND NOT EXISTS (SELECT FROM"
        " outbox_events AS o WHERE o.payload->>'shipmentId' = e.payload->>'shipmentId'"
        " AND o.id <> e.id AND {})"
    )
    is_returned = "o.event_type = 'order.shipment.returned.v1' AND"
    for email, event, is_later in (
        ("order.shipped", "order.shipment.created.v1", "o.created_at = e.created_at"),
        ("order.delivered", "order.shipment.delivered.v1", f"{is_returned} o.created_at <= e.created_at"),
    ):
        news = shop.query(later.format(event, is_later))
        assert shop.query(f"{mailed} '{email}' AND order_id IN ({own})") == news
    # Each of their parcels has one e-mail, and P-1 one more about its delivery, unless that arrived first.
    theirs = shop.query(
        "SELECT count(*) FILTER (WHERE event_type = 'order.shipped'),"
        " count(*) FILTER (WHERE event_type = 'order.delivered') FROM email_notifications"
        f" WHERE order_id NOT IN ({own}) GROUP BY order_id"
    )
    assert len(theirs) == orders and set(theirs) <= {(1, 1), (2, 1)}
    # A parcel that another system tells of late is mailed late. Its payment is mailed first all the same.
    own_ids = {str(id) for (id,) in shop.query(own)}
    disorder = find_disorder(shop)
    assert [text for text in disorder if text.partition(":")[0] in own_ids or ": version 2 " in text] == []
    assert find_doubled(shop) == []


def test_parcels_by_three_ways_are_counted_and_mailed_once_while_processes_are_killed():
    with Shop() as shop:
        play(shop, orders=6, kills=6)


@pytest.mark.drill
def test_hundred_orders_of_each_owner():
    with Shop() as shop:
        play(shop, orders=100, kills=60)


@pytest.mark.drill
def test_they_are_over_kafka_too():
    with (
        kafka.cluster() as broker,
        Shop(EVENT_TRANSPORT="kafka", KAFKA_BOOTSTRAP_SERVERS=broker.url) as shop,
    ):
        shop.manage("make_topics", *kafka.ONE_BROKER_OPTIONS)
        play(shop, orders=30, kills=15)
