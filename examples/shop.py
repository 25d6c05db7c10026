"""A shop that owns its orders publishes their events, and `make run` sends their e-mails.

    ORDER_SOURCES=example-shop make run        # in one terminal
    .venv/bin/python examples/shop.py          # in another: the events of one order
    .venv/bin/python examples/shop.py --late   # the same, the payment after the parcel

It knows Redis Streams and the envelope, and imports nothing of orderpost. A real shop writes each event to
its own outbox, in the transaction of the change.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
import uuid
from typing import Any

import redis
from services import setting

SOURCE = "example-shop"


def publish(redis: redis.Redis, *, change: str, sequence: int, order: dict[str, Any], **details: Any) -> None:
    """Publish the whole order after a change. `sequence` is its version."""
    topic = f"order.order.{change}.v1"
    event = {
        "eventId": str(uuid.uuid4()),
        "timestamp": dt.datetime.now(dt.UTC).isoformat(),
        "eventType": topic,
        "version": 1,
        "source": SOURCE,
        "data": order | details,
        "metadata": {"source": SOURCE, "sequence": sequence},
    }
    redis.xadd(topic, {"key": order["orderId"], "value": json.dumps(event)})
    print(f"{sequence} {topic} {details}", flush=True)


def main() -> None:
    """Publish the events of one order."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--late", action="store_true", help="publish the payment after the parcel")
    late = parser.parse_args().late
    order = {
        "orderId": str(uuid.uuid4()),
        "userId": str(uuid.uuid4()),
        "placedAt": dt.datetime.now(dt.UTC).isoformat(),
        "email": "ann@example.com",
        "name": "Ann",
        "reference": "A-1001",
        "totalAmount": 4990,
        "currency": "EUR",
        "items": [{"sku": "TEA-1", "name": "Green tea", "quantity": 2, "unitAmount": 1995}],
    }
    steps: list[tuple[str, int, dict[str, Any]]] = [
        ("placed", 1, {"status": "pending"}),
        ("paid", 2, {"status": "paid"}),
        ("completed", 3, {"status": "completed", "trackingUrl": "https://parcels.example.com/42"}),
    ]
    if late:
        steps[1:] = reversed(steps[1:])
    url = setting("REDIS_URL")
    if not url:
        sys.exit("Start `make run` first, or set REDIS_URL.")
    with redis.Redis.from_url(url) as connection:
        for change, sequence, details in steps:
            publish(connection, change=change, sequence=sequence, order=order, **details)
    print(f"See /admin/orders/order/{order['orderId']}/change/", flush=True)


if __name__ == "__main__":
    main()
