"""An open-loop HTTP client that costs little: one thread, one epoll, requests made of bytes.

    python -I -S benchmarks/load.py < plan.json > seen.json

It places `orders` orders, `rate` a second, and pays each one `PAY_AFTER` seconds later. The plan is JSON:
host, port, token, run (a name in every key), rate, orders, connections. A request is due at its time whatever
happened to earlier requests, and its latency counts from that time: if it waits for a free connection, the
server is the cause. Only the payment of an order without an id waits for the id; its latency counts from its
own due time, too. The latencies of refused requests (503) are `refused`. The client is a process of its own
and shares no GIL.
"""

from __future__ import annotations

import gc
import json
import resource
import select
import socket
import sys
import time
from collections import Counter, deque
from typing import Any

PAY_AFTER = 1.0
LAST_ANSWER_SECONDS = 120.0
LOCALES = ("en", "de", "es", "fr")
ITEMS = [
    {"sku": "TEA-1", "name": "Green tea", "quantity": 2, "unit_amount": 1995},
    {"sku": "CUP-7", "name": "Porcelain cup", "quantity": 1, "unit_amount": 900},
]


class _Request:
    __slots__ = ("due", "number", "raw")

    def __init__(self, number: int, raw: bytes, due: float) -> None:
        self.number, self.raw, self.due = number, raw, due


class _Connection:
    def __init__(self, host: str, port: int) -> None:
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.request: _Request | None = None
        self.buffer = b""


class Client:
    """One run. Requests have numbers: 2 n places order n, 2 n + 1 pays it."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.rate, self.orders = float(plan["rate"]), int(plan["orders"])
        self.head = f"Host: {plan['host']}\r\nAuthorization: Bearer {plan['token']}\r\n"
        self.places = [self._place(number) for number in range(self.orders)]
        self.ids: list[bytes | None] = [None] * self.orders
        self.early: set[int] = set()  # orders whose payment is due before they have an id
        self.free: deque[_Connection] = deque()
        self.waiting: deque[_Request] = deque()
        self.seen: dict[str, list[float]] = {"place": [], "pay": [], "refused": [], "late": []}
        self.statuses: Counter[str] = Counter()
        self.open = 2 * self.orders

    def _place(self, number: int) -> bytes:
        body = json.dumps(
            {
                "user_id": f"6f2b7c9e-4b0d-4c55-9b57-{number:012x}",
                "email": f"bench-{number}@example.com",
                "total_amount": 4990,
                "name": f"Customer {number}",
                "currency": "EUR",
                "locale": LOCALES[number % len(LOCALES)],
                "reference": f"B-{number}",
                "items": ITEMS,
            }
        )
        return (
            f"POST /api/v1/orders HTTP/1.1\r\n{self.head}Content-Type: application/json\r\n"
            f"Idempotency-Key: {self.plan['run']}-place-{number}\r\nX-Correlation-ID: {self.plan['run']}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        ).encode()

    def _pay(self, number: int) -> bytes:
        id = self.ids[number]
        assert id is not None
        return (
            f"POST {id.decode()}/pay HTTP/1.1\r\n{self.head}"
            f"Idempotency-Key: {self.plan['run']}-pay-{number}\r\nX-Correlation-ID: {self.plan['run']}\r\n"
            "Content-Length: 0\r\n\r\n"
        ).encode()

    def run(self) -> None:
        """Send every request at its time and read every answer."""
        poll, by_file = select.epoll(), {}
        for _ in range(int(self.plan["connections"])):
            connection = _Connection(self.plan["host"], self.plan["port"])
            by_file[connection.socket.fileno()] = connection
            poll.register(connection.socket, select.EPOLLIN)
            self.free.append(connection)
        gc.disable()
        start = self.start = time.perf_counter() + 0.2
        placed = paid = 0
        while self.open:
            now = time.perf_counter()
            while placed < self.orders and (due := start + placed / self.rate) <= now:
                self.seen["late"].append((now - due) * 1000)
                self._send(_Request(2 * placed, self.places[placed], due))
                placed += 1
            while paid < self.orders and start + paid / self.rate + PAY_AFTER <= now:
                self._pay_or_wait(paid)
                paid += 1
            nexts = [start + placed / self.rate] if placed < self.orders else []
            nexts += [start + paid / self.rate + PAY_AFTER] if paid < self.orders else []
            for file, _ in poll.poll(max(0.0, min(nexts) - time.perf_counter()) if nexts else 1.0):
                self._read(by_file[file], poll)
            if not nexts and time.perf_counter() > start + self.orders / self.rate + LAST_ANSWER_SECONDS:
                self.statuses["no answer"] += self.open
                return

    def _pay_or_wait(self, number: int) -> None:
        if self.ids[number] is None:
            self.early.add(number)
        else:
            due = self.start + number / self.rate + PAY_AFTER
            self._send(_Request(2 * number + 1, self._pay(number), due))

    def _send(self, request: _Request) -> None:
        if not self.free:
            self.waiting.append(request)
            return
        connection = self.free.popleft()
        connection.request, connection.buffer = request, b""
        connection.socket.send(request.raw)

    def _read(self, connection: _Connection, poll: select.epoll) -> None:
        try:
            data = connection.socket.recv(65536)
        except BlockingIOError:
            return
        request = connection.request
        if not data:
            poll.unregister(connection.socket)
            if connection in self.free:
                self.free.remove(connection)
            if request:
                self._answered(request, b"lost", b"")
            return
        connection.buffer += data
        head, end, body = connection.buffer.partition(b"\r\n\r\n")
        if not end or request is None:
            return
        lower = head.lower()
        at = lower.find(b"content-length:")
        if len(body) < int(lower[at + 15 :].split(b"\r\n", 1)[0]):
            return
        connection.request = None
        self.free.append(connection)
        self._answered(request, head[9:12], head)
        if self.waiting:
            self._send(self.waiting.popleft())

    def _answered(self, request: _Request, status: bytes, head: bytes) -> None:
        number, is_pay = divmod(request.number, 2)
        kind = "refused" if status == b"503" else "pay" if is_pay else "place"
        self.seen[kind].append((time.perf_counter() - request.due) * 1000)
        self.statuses[status.decode()] += 1
        self.open -= 1
        if is_pay:
            return
        if status == b"201":
            at = head.lower().find(b"\r\nlocation: ")  # header names are case-insensitive
            self.ids[number] = head[at + 12 :].partition(b"\r\n")[0]
            if number in self.early:
                self._pay_or_wait(number)
        else:
            self.open -= 1  # nothing to pay
            self.statuses["not paid"] += 1


def main() -> None:
    """Read the plan, run it, and print the latencies, statuses and CPU of this process."""
    client = Client(json.load(sys.stdin))
    before = resource.getrusage(resource.RUSAGE_SELF)
    began = time.time()
    client.run()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    json.dump({**client.seen, "statuses": client.statuses, "cpu": cpu, "began": began}, sys.stdout)


if __name__ == "__main__":
    main()
