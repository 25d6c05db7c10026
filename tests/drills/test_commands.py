"""Orders of another system, and commands, over Kafka: each comes twice and has one effect."""

from __future__ import annotations

import json
import uuid
from typing import Any

import confluent_kafka
import pytest

from tests.kit import kafka
from tests.kit.events import SHOP, envelope, story
from tests.kit.inbound_commands import COMPLETE, PLACE
from tests.kit.shop import Shop

pytestmark = [pytest.mark.flow, pytest.mark.drill]


def test_orders_of_another_system_and_commands_come_over_kafka():
    events = story(order := str(uuid.uuid4()))
    body = {"userId": str(uuid.uuid4()), "email": "bob@example.com", "totalAmount": 700, "currency": "EUR"}
    place = envelope(PLACE, body, source="till", metadata={"correlationId": "till-7"})
    settings = {"ORDER_SOURCES": SHOP, "EVENT_COMMANDS": "on", "EVENT_TRANSPORT": "kafka"}
    with kafka.cluster() as broker, Shop(KAFKA_BOOTSTRAP_SERVERS=broker.url, **settings) as shop:
        shop.manage("make_topics", *kafka.ONE_BROKER_OPTIONS)
        shop.start("worker", "consumer:1", "consumer:2", "relay")
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.url, "acks": "all"})

        def publish(event: dict[str, Any], *, key: str) -> None:
            producer.produce(event["eventType"], json.dumps(event), key)
            assert producer.flush(30) == 0

        for event in [*events, *events]:  # each twice
            publish(event, key=order)
        publish(place, key="till")
        publish(place, key="till")
        until = "the order is refunded and the command has placed one"
        newest = (
            "SELECT id::text, status, version, coalesce(source, '') FROM orders ORDER BY total_amount DESC"
        )
        shop.until(lambda: [row[1] for row in shop.query(newest)] == ["refunded", "pending"], until)
        (first, _, version, source), (second, _, _, own) = shop.query(newest)
        assert (first, version, source, own) == (order, len(events), SHOP, "")
        complete = envelope(COMPLETE, {"orderId": second, "trackingUrl": "https://parcel.example/1"})
        publish(complete, key=second)
        unpaid = "SELECT topic, event_id::text FROM inbound_dead_letters"
        shop.until(lambda: shop.query(unpaid), "an order that is not paid cannot be completed")
        assert shop.query(unpaid) == [(COMPLETE, complete["eventId"])]
        shop.until(lambda: shop.all_sent_or_overtaken(4), "none is owed")
        names = sorted(key.split(":")[1] for (key,) in shop.rows("idempotency_key"))
        assert names == ["order.completed", "order.paid", "order.part_refunded", "order.refunded"]
        assert set(shop.accepted().values()) == {1}
        published = (
            "SELECT event_type, metadata->>'correlationId' FROM outbox_events WHERE aggregate_id = '%s'"
        )
        assert shop.query(published % second) == [("order.order.placed.v1", "till-7")]
        assert shop.query(published % order) == []
