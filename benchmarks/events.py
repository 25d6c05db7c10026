"""Events of another system and of a provider, over Redis Streams or over HTTP with one or many in a request.

Each event of another system creates a paid order with its e-mail. Each one of the provider reports that a
sent e-mail was delivered. One consumer, or a web process with eight clients, works alone with PostgreSQL.
Nothing sends the e-mails.
"""

from __future__ import annotations

import datetime as dt
import http.client
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import redis

from benchmarks.figures import table
from benchmarks.rig import Rig
from benchmarks.rows import SUBJECT, queue_mails
from config.roles import commands
from local.machine import HOST, free_port

TOPIC, SOURCE = "order.order.paid.v1", "bench-shop"
CLIENTS = 8
Make = Callable[[Rig, int], list[dict[str, Any]]]
Send = Callable[[Rig, list[dict[str, Any]], int, str], None]


def make_event() -> dict[str, Any]:
    now = dt.datetime.now(dt.UTC).isoformat()
    return {
        "eventId": str(uuid.uuid4()),
        "timestamp": now,
        "eventType": TOPIC,
        "version": 1,
        "source": SOURCE,
        "metadata": {"sequence": 1},
        "data": {
            "orderId": str(uuid.uuid4()),
            "userId": "42",
            "status": "paid",
            "placedAt": now,
            "email": "ann@example.com",
            "name": "Ann",
            "totalAmount": 4990,
            "currency": "EUR",
            "items": [{"sku": "TEA-1", "name": "Green tea", "quantity": 2, "unitAmount": 1995}],
        },
    }


def make_events(rig: Rig, count: int) -> list[dict[str, Any]]:
    return [make_event() for _ in range(count)]


def make_deliveries(rig: Rig, count: int) -> list[dict[str, Any]]:
    """Insert sent e-mails, and return SendGrid's events of their delivery."""
    with psycopg.connect(rig.postgres.url, autocommit=True) as connection:
        queue_mails(connection, count)
    rows = rig.query(
        "UPDATE email_notifications SET status = 'sent', sent_at = now(), provider = 'sendgrid'"
        " WHERE status = 'pending' AND subject = %s RETURNING id",
        SUBJECT,
    )
    at = int(time.time())
    return [{"event": "delivered", "timestamp": at, "notification_id": str(id)} for (id,) in rows]


def over_streams(rig: Rig, events: list[dict[str, Any]], port: int, token: str) -> None:
    """Publish all events, and wait until the consumer has processed them."""
    before = count_processed(rig)
    with redis.Redis.from_url(rig.valkey.url) as client, client.pipeline(transaction=False) as pipe:
        for event in events:
            pipe.xadd(TOPIC, {"key": event["data"]["orderId"], "value": json.dumps(event)})
        pipe.execute()
    while count_processed(rig) < before + len(events):
        time.sleep(0.05)


def over_http(in_a_request: int, path: str = "/api/v1/events") -> Send:
    """Return the function that posts events, `in_a_request` at a time. A webhook takes only lists."""
    is_list = in_a_request > 1 or "webhooks" in path

    def send(rig: Rig, events: list[dict[str, Any]], port: int, token: str) -> None:
        bodies = iter(
            [
                json.dumps(events[start : start + in_a_request] if is_list else events[start])
                for start in range(0, len(events), in_a_request)
            ]
        )
        clients = [
            threading.Thread(target=post_all, args=(bodies, port, token, path)) for _ in range(CLIENTS)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join()

    return send


def post_all(bodies: Iterator[str], port: int, token: str, path: str) -> None:
    """Post bodies over one connection until none is left."""
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    for body in bodies:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != 200 or b'"refused"' in text:
            raise RuntimeError(f"{answer.status}: {text[:300]!r}")
    connection.close()


def count_processed(rig: Rig) -> int:
    return int(rig.query("SELECT count(*) FROM processed_events")[0][0])


WAYS: dict[str, tuple[Make, Send]] = {
    "Redis Streams, one consumer": (make_events, over_streams),
    "HTTP, one event": (make_events, over_http(1)),
    "HTTP, a list of 100": (make_events, over_http(100)),
    "webhook, one delivery": (make_deliveries, over_http(1, "/webhooks/sendgrid")),
    "webhook, 100 deliveries": (make_deliveries, over_http(100, "/webhooks/sendgrid")),
}


def compare(*, count: int, rounds: int) -> str:
    """Measure each way in turns, and return the medians as a table."""
    results_by_way: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with Rig(ORDER_SOURCES=SOURCE, LOG_LEVEL="WARNING", ALLOWED_HOSTS=HOST) as rig:
        port = free_port()
        scope = ("--scope", "events:write", "--source", SOURCE)
        token = rig.python("manage.py", "tokens", "create", "bench", *scope).strip()
        for name in ("web", "consumer"):
            rig.run(name, commands(host=HOST, port=port)[name])
        for round in range(rounds + 1):  # the first warms up
            for way, (make, send) in WAYS.items():
                result = measure(rig, make, send, port, token, count=count if round else 200)
                if round:
                    results_by_way[way].append(result)
    rows = [["way", "events/s", "CPU ms an event", "of it PostgreSQL"]]
    for way, results in results_by_way.items():
        middle = sorted(results, key=lambda result: result["cpu ms"])[len(results) // 2]
        rows.append(
            [way, f"{middle['events/s']:,.0f}", f"{middle['cpu ms']:.2f}", f"{middle['postgres ms']:.2f}"]
        )
    note = f"{count:,} events, {CLIENTS} clients over HTTP, the median of {rounds} rounds by CPU."
    return f"{table(rows)}\n\n{note}"


def measure(
    rig: Rig,
    make: Make,
    send: Send,
    port: int,
    token: str,
    *,
    count: int,
) -> dict[str, float]:
    """Return the rate, and the CPU of the processes and of PostgreSQL for an event."""
    wait_for_web(port)
    events = make(rig, count)
    before, began = rig.cpu(), time.perf_counter()
    send(rig, events, port, token)
    took, after = time.perf_counter() - began, rig.cpu()
    used = {kind: (after[kind] - before[kind]) * 1000 / count for kind in after}
    return {
        "events/s": count / took,
        "cpu ms": sum(used.values()),
        "postgres ms": used["postgres"],
    }


def wait_for_web(port: int) -> None:
    """Wait until the web process answers."""
    while True:
        try:
            connection = http.client.HTTPConnection(HOST, port, timeout=5)
            connection.request("GET", "/healthz")
            connection.getresponse().read()
            connection.close()
            return
        except OSError:
            time.sleep(0.1)
