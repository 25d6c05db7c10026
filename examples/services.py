"""Two small services that play a shop's saga against `make run`: a payment service and a warehouse.

    .venv/bin/python examples/services.py            # both, until Ctrl-C

They know Redis Streams and the envelope, and nothing of orderpost's code. The payment service captures the
money of every placed order and returns it when a paid order is cancelled. The warehouse reserves stock; it
has none of a sku that starts with "rare". Each remembers the ids of the events that it has handled, because
an event may come twice. Each also reads `<its name>.resend`, where `manage.py resend_events --to` puts events
for it alone.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

LOCAL_ENV = Path(__file__).resolve().parent.parent / "var" / "local.env"
Event = dict[str, Any]


def broker() -> redis.Redis:
    """Connect to the broker of REDIS_URL, or of the local run."""
    url = os.environ.get("REDIS_URL")
    if url is None and LOCAL_ENV.exists():
        found = [line for line in LOCAL_ENV.read_text().splitlines() if line.startswith("REDIS_URL=")]
        url = found[0].partition("=")[2].strip("'") if found else None
    if url is None:
        sys.exit("Start `make run` first, or set REDIS_URL.")
    return redis.Redis.from_url(url)


class Service:
    """Consumes some topics in a group of its own, and publishes what its handlers return."""

    def __init__(self, name: str, handlers: dict[str, Callable[[Event], tuple[str, Event] | None]]) -> None:
        self.name, self.handlers, self.broker = name, handlers, broker()
        self.topics = [*handlers, f"{name}.resend"]
        self.seen: set[str] = set()  # a real one keeps these in the transaction of its own change

    def run(self, stopped: threading.Event) -> None:
        for topic in self.topics:
            try:
                self.broker.xgroup_create(topic, self.name, id="$", mkstream=True)
            except redis.ResponseError:
                pass  # the group is there
        while not stopped.is_set():
            answer = self.broker.xreadgroup(self.name, "1", dict.fromkeys(self.topics, ">"), block=500)
            for stream, entries in answer or []:
                for entry, fields in entries:
                    self.handle(json.loads(fields[b"value"]))
                    self.broker.xack(stream, self.name, entry)

    def handle(self, event: Event) -> None:
        topic = event["eventType"]
        if event["eventId"] in self.seen or topic not in self.handlers:
            return
        self.seen.add(event["eventId"])
        correlation = event["metadata"]["correlationId"]
        answer = self.handlers[topic](event["data"])
        if answer is None:
            return
        told, data = answer
        envelope = {
            "eventId": str(uuid.uuid4()),
            "timestamp": dt.datetime.now(dt.UTC).isoformat().replace("+00:00", "Z"),
            "eventType": told,
            "version": 1,
            "source": self.name,
            "data": data,
            "metadata": {"correlationId": correlation, "traceId": event["metadata"].get("traceId")},
        }
        self.broker.xadd(told, {"key": data["orderId"], "value": json.dumps(envelope)})
        print(f"{self.name}: {topic} of {data['orderId']} -> {told} [{correlation}]", flush=True)


def capture(data: Event) -> tuple[str, Event]:
    return "payment.payment.succeeded.v1", {"orderId": data["orderId"]}


def give_back(data: Event) -> tuple[str, Event] | None:
    """Return the money of a cancelled order that had been paid."""
    if not data["wasPaid"]:
        return None
    amount = data["totalAmount"] - data["refundedAmount"]
    return "payment.payment.refunded.v1", {"orderId": data["orderId"], "amount": amount}


def reserve(data: Event) -> tuple[str, Event]:
    """Reserve stock for a paid order; its skus were in the event of its placing."""
    rare = data["orderId"] in RARE
    topic = "warehouse.stock.insufficient.v1" if rare else "warehouse.stock.reserved.v1"
    return topic, {"orderId": data["orderId"]}


def remember(data: Event) -> None:
    """Remember the orders with a sku that is out of stock."""
    if any(item["sku"].startswith("rare") for item in data["items"]):
        RARE.add(data["orderId"])


RARE: set[str] = set()


def main() -> None:
    """Run both services, each in a thread."""
    stopped = threading.Event()
    services = [
        Service("warehouse-service", {"order.order.placed.v1": remember, "order.order.paid.v1": reserve}),
        Service("payment-service", {"order.order.placed.v1": capture, "order.order.cancelled.v1": give_back}),
    ]
    threads = [threading.Thread(target=service.run, args=[stopped]) for service in services]
    for thread in threads:
        thread.start()
    print("payment-service and warehouse-service are listening; Ctrl-C ends them.", flush=True)
    try:
        stopped.wait()
    except KeyboardInterrupt:
        stopped.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
