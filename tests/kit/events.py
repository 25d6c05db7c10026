"""Inbound events: of payments and stock, which change our orders, and of shops, which own theirs."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Collection
from typing import Any

from tests.kit.orders import pay_order, place_order
from tests.kit.words import (
    HANDLERS,
    NAME,
    EmailNotification,
    InboundDeadLetter,
    Order,
    Received,
    inbox,
)

PAID, REFUNDED = "payment.payment.succeeded.v1", "payment.payment.refunded.v1"
FAILED = "payment.payment.failed.v1"
RESERVED, INSUFFICIENT = "warehouse.stock.reserved.v1", "warehouse.stock.insufficient.v1"
SHOP = "shop-a"
USER = "6f2b7c9e-4b0d-4c55-9b57-0d5a2f6c1e11"
BEGAN = dt.datetime.now(dt.UTC)
PLACED_AT = "2026-11-20T09:30:00Z"


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


def handle(message: Received, published_topics: Collection[str] = ()) -> str:
    opened = inbox.open_message(message)
    return inbox.process(opened, consumer=NAME, handlers=HANDLERS, published_topics=published_topics)


def give_about(topic: str, order: Order | uuid.UUID, **data: Any) -> str:
    id = order.id if isinstance(order, Order) else order
    return handle(received(topic, envelope(topic, {"orderId": str(id)} | data)))


def status(order: Order) -> str:
    order.refresh_from_db()
    return order.status


def dead_refund(amount: int = 10) -> tuple[Order, InboundDeadLetter]:
    """Dead-letter a refund that came before its payment, then take the payment."""
    it = order()
    event = envelope(REFUNDED, {"orderId": str(it.id), "amount": amount})
    assert handle(received(REFUNDED, event)) == "dead"
    pay_order(order_id=it.id)
    return it, InboundDeadLetter.objects.get(event_id=event["eventId"])


def refunded(it: Order) -> int:
    it.refresh_from_db()
    return it.refunded_amount


def topic_of(change: str) -> str:
    return f"order.order.{change}.v1"


def told(change: str, order_id: str, sequence: Any, *, source: str = SHOP, **data: Any) -> dict[str, Any]:
    """Make the envelope of a change. `data` overrides the usual fields."""
    values = {
        "orderId": order_id,
        "userId": USER,
        "status": {"placed": "pending", "shipped": "paid"}.get(change, change),
        "placedAt": PLACED_AT,
        "email": "ann@example.com",
        "name": "Ann",
        "totalAmount": 1000,
        "currency": "EUR",
        "reference": "A-1001",
        "items": [{"sku": "TEA", "name": "Tea", "quantity": 2, "unitAmount": 500}],
    } | data
    if change == "cancelled":
        values.setdefault("wasPaid", True)
    if change == "shipped":
        values.setdefault("shipment", {"reference": "P-1"})
    metadata = {"source": source, "sequence": sequence, "correlationId": "their-work"}
    return envelope(topic_of(change), values, source=source, metadata=metadata)


def give(event: dict[str, Any]) -> str:
    return handle(received(event["eventType"], event, key=str(event["data"].get("orderId"))))


def tell(change: str, order_id: str, sequence: Any, **data: Any) -> str:
    return give(told(change, order_id, sequence, **data))


def minutes_ago(count: int) -> str:
    """Return a time as text, the same for the same number, so that two orders can be compared."""
    return (BEGAN - dt.timedelta(minutes=count)).isoformat()


def story(order_id: str) -> list[dict[str, Any]]:
    """Return every kind of change except a cancellation, in order, a minute apart."""
    events = [
        told("placed", order_id, 1, email="old@example.com"),
        told("paid", order_id, 2),
        told("confirmed", order_id, 3),
        told("part_refunded", order_id, 4, refundedAmount=300, amount=300),
        told("completed", order_id, 5, refundedAmount=300, status="part_refunded"),
        told("refunded", order_id, 6, refundedAmount=1000, amount=700),
    ]
    for number, event in enumerate(events):
        event["timestamp"] = minutes_ago(60 - number)
    return events


def cancellation(order_id: str) -> list[dict[str, Any]]:
    events = [
        told("placed", order_id, 1),
        told("paid", order_id, 2),
        told("cancelled", order_id, 3, reason="Out of stock"),
        told("refunded", order_id, 4, status="cancelled", refundedAmount=1000, amount=1000),
    ]
    for number, event in enumerate(events):
        event["timestamp"] = minutes_ago(60 - number)
    return events


def new_id() -> str:
    return str(uuid.uuid4())


def without_address(sequence: int = 1, **data: Any) -> Order:
    """Report an order without a usable address, one event for each sequence."""
    id = new_id()
    for number, change in enumerate(("placed", "paid", "completed")[:sequence], start=1):
        assert tell(change, id, number, **{"email": "a..b@docomo.ne.jp", "userId": USER} | data) == "done"
    return Order.objects.get(id=id)


def emails(order: Order) -> dict[str, tuple[str, str]]:
    """Return the state and the recipient of each of an order's e-mails by its event."""
    rows = EmailNotification.objects.filter(order_id=order.id, shop_copy_of=None, resend_of=None)
    return {row.event_type: (row.status, row.recipient_email) for row in rows}
