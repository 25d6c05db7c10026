"""Inbound events for tests: envelopes, and orders that they change."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Collection
from typing import Any

from outbox.events.consuming.inbox import process
from tests.kit.words import HANDLERS, NAME, Order, Received, place_order

PAID, REFUNDED = "payment.payment.succeeded.v1", "payment.payment.refunded.v1"
FAILED = "payment.payment.failed.v1"
RESERVED, INSUFFICIENT = "warehouse.stock.reserved.v1", "warehouse.stock.insufficient.v1"


def order(**fields: Any) -> Order:
    return place_order(user_id=uuid.uuid4(), email="a@example.com", total_amount=1000, **fields)


def envelope(topic: str, data: Any, **more: Any) -> dict[str, Any]:
    return {
        "eventId": str(uuid.uuid4()),
        "timestamp": dt.datetime.now(dt.UTC).isoformat(),
        "eventType": topic,
        "version": 1,
        "source": "payment-service",
        "data": data,
        "metadata": {"correlationId": "saga-1"},
    } | more


def received(topic: str, value: Any, key: str = "k", written_at: dt.datetime | None = None) -> Received:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Received(topic, key, body, None, written_at)


def handle(message: Received, own_topics: Collection[str] = ()) -> str:
    return process(received=message, consumer=NAME, handlers=HANDLERS, own_topics=own_topics)


def give(topic: str, order: Order | uuid.UUID, **data: Any) -> str:
    id = order.id if isinstance(order, Order) else order
    return handle(received(topic, envelope(topic, {"orderId": str(id)} | data)))


def status(order: Order) -> str:
    order.refresh_from_db()
    return order.status
