"""What other services are told of an order's change: topics and payloads. No name, no address."""

from __future__ import annotations

from typing import Any

from orders.models import Order
from outbox.events.publish import publish_event

#: The order's own word for a change -> the topic. A payload that changes gets a new topic version.
TOPICS = {
    "order.placed": "order.order.placed.v1",
    "order.paid": "order.order.paid.v1",
    "order.confirmed": "order.order.confirmed.v1",
    "order.completed": "order.order.completed.v1",
    "order.cancelled": "order.order.cancelled.v1",
    "order.refunded": "order.order.refunded.v1",
    "order.part_refunded": "order.order.part_refunded.v1",
}


def publish_order_event(*, order: Order, event: str, sequence: int, details: dict[str, Any]) -> None:
    """This function will save the domain event of a change in the caller's transaction.

    `details` are the change's own fields in camelCase; consumers ask the API for anything personal.
    """
    publish_event(
        aggregate_type="order",
        aggregate_id=order.id,
        event_type=TOPICS[event],
        sequence=sequence,
        user_id=order.user_id,
        payload={
            "orderId": str(order.id),
            "userId": str(order.user_id),
            "status": str(order.status),
            "totalAmount": order.total_amount,
            "refundedAmount": order.refunded_amount,
            "currency": order.currency,
            **details,
        },
    )
