"""Two small services that play a shop's saga against `make run`: a payment service and a warehouse.

    .venv/bin/python examples/services.py            # both, until Ctrl-C

They know the broker (Redis Streams, or Kafka if EVENT_TRANSPORT selects it) and the envelope, and import
nothing of orderpost. The payment service captures the money of each placed order and returns it when a paid
order is cancelled. The warehouse reserves stock, and has none of a sku that starts with "rare". Each service
remembers the ids of handled events, because an event may come twice.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

LOCAL_ENV = Path(__file__).resolve().parent.parent / "var" / "local.env"
Event = dict[str, Any]


def setting(name: str) -> str | None:
    """Return a variable of the environment or of the local run."""
    if (value := os.environ.get(name)) is None and LOCAL_ENV.exists():
        lines = [line for line in LOCAL_ENV.read_text().splitlines() if line.startswith(f"{name}=")]
        value = lines[0].partition("=")[2].strip("'") if lines else None
    return value


class Streams:
    """Reads topics of Redis Streams for one group."""

    def __init__(self, group: str, topics: list[str]) -> None:
        url = setting("REDIS_URL")
        if url is None:
            sys.exit("Start `make run` first, or set REDIS_URL.")
        self.group, self.topics, self.client = group, topics, redis.Redis.from_url(url)
        for topic in topics:
            try:
                self.client.xgroup_create(topic, group, id="$", mkstream=True)
            except redis.ResponseError:
                pass  # the group exists

    def receive(self) -> Iterator[bytes]:
        """Yield the envelopes of half a second, and acknowledge each after its handling."""
        answer: Any = self.client.xreadgroup(self.group, "1", dict.fromkeys(self.topics, ">"), block=500)
        for stream, entries in answer or []:
            for entry, fields in entries:
                yield fields[b"value"]
                self.client.xack(stream, self.group, entry)

    def publish(self, topic: str, *, key: str, value: str) -> None:
        self.client.xadd(topic, {"key": key, "value": value})

    def close(self) -> None:
        self.client.close()


class Topics:
    """Reads topics of Kafka for one group."""

    def __init__(self, group: str, topics: list[str]) -> None:
        import confluent_kafka

        servers = {"bootstrap.servers": setting("KAFKA_BOOTSTRAP_SERVERS")}
        own = {"group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        self.consumer = confluent_kafka.Consumer(servers | own | {"topic.metadata.refresh.interval.ms": 5000})
        self.producer = confluent_kafka.Producer(servers | {"enable.idempotence": True, "linger.ms": 1})
        self.consumer.subscribe(topics)

    def receive(self) -> Iterator[bytes]:
        """Yield the next envelope of half a second, and acknowledge it after its handling."""
        message = self.consumer.poll(0.5)
        if message is not None and message.error() is None:
            if (value := message.value()) is not None:
                yield value
            self.consumer.commit(message=message, asynchronous=False)

    def publish(self, topic: str, *, key: str, value: str) -> None:
        self.producer.produce(topic, value, key)
        if self.producer.flush(30):
            raise TimeoutError("Kafka did not take an event")

    def close(self) -> None:
        self.consumer.close()


class Service:
    """Consumes topics in its own group, and publishes what its handlers return."""

    def __init__(self, name: str, handlers: dict[str, Callable[[Event], tuple[str, Event] | None]]) -> None:
        self.name, self.handlers = name, handlers
        broker = Topics if setting("EVENT_TRANSPORT") == "kafka" else Streams
        self.broker: Topics | Streams = broker(name, list(handlers))
        self.seen: set[str] = set()  # a real service stores these in the transaction of its change

    def run(self, stopped: threading.Event) -> None:
        while not stopped.is_set():
            for value in self.broker.receive():
                self.handle(json.loads(value))
        self.broker.close()

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
        self.broker.publish(told, key=data["orderId"], value=json.dumps(envelope))
        print(f"{self.name}: {topic} of {data['orderId']} -> {told} [{correlation}]", flush=True)


def capture(data: Event) -> tuple[str, Event]:
    """Take the order's total. orderpost refuses a payment of another amount or currency."""
    money = {"amount": data["totalAmount"], "currency": data["currency"]}
    return "payment.payment.succeeded.v1", {"orderId": data["orderId"], **money}


def give_back(data: Event) -> tuple[str, Event] | None:
    """Return the money of a cancelled order that was paid."""
    if not data["wasPaid"]:
        return None
    money = {"amount": data["totalAmount"] - data["refundedAmount"], "currency": data["currency"]}
    return "payment.payment.refunded.v1", {"orderId": data["orderId"], **money}


def reserve(data: Event) -> tuple[str, Event]:
    """Reserve stock for a paid order, whose skus were in the event of its placing."""
    if missing := RARE.get(data["orderId"]):
        return "warehouse.stock.insufficient.v1", {"orderId": data["orderId"], **missing}
    return "warehouse.stock.reserved.v1", {"orderId": data["orderId"]}


def remember(data: Event) -> None:
    """Remember the orders with a sku that is out of stock."""
    for item in data["items"]:
        if item["sku"].startswith("rare"):
            RARE[data["orderId"]] = {"productId": item["sku"], "requested": item["quantity"]}


RARE: dict[str, Event] = {}


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
