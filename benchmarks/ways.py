"""An order placed and paid by each way in, until its e-mail is sent: two requests, and two events.

All processes of a shop run. Eight clients send over HTTP, and one consumer reads the streams.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import redis

from benchmarks.events import CLIENTS, SOURCE, count_processed, make_event, wait_for_web
from benchmarks.figures import table
from benchmarks.rig import Rig
from config.roles import commands
from local.machine import HOST, free_port

_WAITING = """
    SELECT (SELECT count(*) FROM email_notifications WHERE status IN ('pending', 'processing', 'failed'))
        + (SELECT count(*) FROM outbox_events WHERE published_at IS NULL)
"""
_CLASSES = ("web", "consumer", "relay", "worker", "postgres", "valkey")


def make_order() -> list[dict[str, Any]]:
    """Return the two events of another system's order."""
    placed, paid = make_event(), make_event()
    placed["eventType"], placed["data"]["status"] = "order.order.placed.v1", "pending"
    paid["data"]["orderId"], paid["metadata"] = placed["data"]["orderId"], {"sequence": 2}
    return [placed, paid]


class MeasuredShop:
    """A shop whose CPU is measured."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.port = rig, free_port()
        self.placer = self._token("place", "orders:write")
        self.sender = self._token("send", "events:write", "--source", SOURCE)
        rig.start_provider(delay=0.0)
        for name in ("web", "consumer", "relay", "worker"):
            rig.run(name, commands(host=HOST, port=self.port)[name])
        wait_for_web(self.port)

    def _token(self, name: str, scope: str, *more: str) -> str:
        return self.rig.python("manage.py", "tokens", "create", name, "--scope", scope, *more).strip()

    def is_done(self) -> bool:
        return not self.rig.query(_WAITING)[0][0]

    def from_clients(self, work: Callable[[HttpClient], None]) -> None:
        """Call `work` in each client's thread."""
        clients = [threading.Thread(target=work, args=(HttpClient(self),)) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()


class HttpClient:
    """A connection to the web process."""

    def __init__(self, shop: MeasuredShop) -> None:
        self._connection = http.client.HTTPConnection(HOST, shop.port, timeout=60)

    def post(self, path: str, body: object, *, token: str, key: str = "") -> Any:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        headers |= {"Idempotency-Key": key} if key else {}
        self._connection.request("POST", f"/api/v1{path}", json.dumps(body), headers)
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status not in (200, 201) or b'"refused"' in text:
            raise RuntimeError(f"{answer.status}: {text[:300]!r}")
        return json.loads(text)


def by_requests(shop: MeasuredShop, count: int) -> None:
    numbers = iter(range(count))

    def work(client: HttpClient) -> None:
        for _ in numbers:
            data = make_event()["data"]
            body = {
                "user_id": str(uuid.uuid4()),
                "email": data["email"],
                "name": data["name"],
                "total_amount": data["totalAmount"],
                "currency": data["currency"],
                "items": [{"sku": "TEA-1", "name": "Green tea", "quantity": 2, "unit_amount": 1995}],
            }
            order = client.post("/orders", body, token=shop.placer, key=str(uuid.uuid4()))
            client.post(f"/orders/{order['id']}/pay", {}, token=shop.placer, key=str(uuid.uuid4()))

    shop.from_clients(work)


def over_streams(shop: MeasuredShop, count: int) -> None:
    before = count_processed(shop.rig)
    with redis.Redis.from_url(shop.rig.valkey.url) as client, client.pipeline(transaction=False) as pipe:
        for event in (event for _ in range(count) for event in make_order()):
            pipe.xadd(event["eventType"], {"key": event["data"]["orderId"], "value": json.dumps(event)})
        pipe.execute()
    while count_processed(shop.rig) < before + 2 * count:
        time.sleep(0.05)


def over_http(in_a_request: int) -> Callable[[MeasuredShop, int], None]:
    """Return the function that posts events, `in_a_request` at a time. A client sends an order's in order."""

    def send(shop: MeasuredShop, count: int) -> None:
        orders = [make_order() for _ in range(count)]
        size = max(1, in_a_request // 2)
        parts: Iterator[list[list[dict[str, Any]]]] = iter(
            [orders[start : start + size] for start in range(0, count, size)]
        )

        def work(client: HttpClient) -> None:
            for part in parts:
                events = [order[at] for at in (0, 1) for order in part]
                for body in [events] if in_a_request > 1 else events:
                    client.post("/events", body, token=shop.sender)

        shop.from_clients(work)

    return send


WAYS: dict[str, Callable[[MeasuredShop, int], None]] = {
    "own order, two requests": by_requests,
    "two events over Redis Streams": over_streams,
    "two events in lists of 100 over HTTP": over_http(100),
    "two events one by one over HTTP": over_http(1),
}


def compare(*, count: int, rounds: int) -> str:
    """Measure each way in turns, and return the medians as a table."""
    results_by_way: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    settings = {"ORDER_SOURCES": SOURCE, "LOG_LEVEL": "WARNING", "EMAIL_RATE_LIMIT": "0"}
    with Rig(**settings, ALLOWED_HOSTS=HOST) as rig:
        shop = MeasuredShop(rig)
        for round in range(rounds + 1):  # the first warms up
            for name, send in WAYS.items():
                result = measure(shop, send, count if round else 200)
                if round:
                    results_by_way[name].append(result)
    rows = [["way", "CPU ms an order", "ratio", *_CLASSES, "changes a second"]]
    middles = {
        name: sorted(some, key=lambda result: result["all"])[len(some) // 2]
        for name, some in results_by_way.items()
    }
    own = next(iter(middles.values()))["all"]
    for name, result in middles.items():
        figures = [f"{result[kind]:.2f}" for kind in _CLASSES]
        ratio = f"{result['all'] / own:.2f}"
        rows.append([name, f"{result['all']:.2f}", ratio, *figures, f"{result['changes/s']:,.0f}"])
    note = f"{count:,} orders, {CLIENTS} clients over HTTP, the median of {rounds} rounds by CPU."
    return f"{table(rows)}\n\n{note}"


def measure(shop: MeasuredShop, send: Callable[[MeasuredShop, int], None], count: int) -> dict[str, float]:
    """Return the changes a second, and the CPU of an order (ms) until its e-mail and its events are sent."""
    before, began = shop.rig.cpu(), time.perf_counter()
    send(shop, count)
    took = time.perf_counter() - began
    while not shop.is_done():
        time.sleep(0.1)
    after = shop.rig.cpu()
    used = {kind: (after[kind] - before[kind]) * 1000 / count for kind in _CLASSES}
    return used | {"all": sum(used.values()), "changes/s": 2 * count / took}
