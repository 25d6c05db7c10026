"""Attacks by strangers on a web process, and the orders that a shop places meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import selectors
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import requests

from local.machine import HOST

#: The length that a slow body claims to have.
CLAIMED_BYTES = 900_000
SIGNATURE = "A" * 43 + "="
FORM = "application/x-www-form-urlencoded"


def made_up_headers(path: str) -> dict[str, str]:
    """Return headers that no server can tell from those of a shop, a provider or a person."""
    if path.startswith("/connect/"):
        return {"X-WC-Webhook-Signature": SIGNATURE, "Content-Type": "application/json"}
    if path.startswith("/api/"):
        return {"Content-Type": "application/json"}
    if path.startswith("/webhooks/"):
        return {
            "X-Twilio-Email-Event-Webhook-Signature": SIGNATURE,
            "X-Twilio-Email-Event-Webhook-Timestamp": str(int(time.time())),
            "Content-Type": "application/json",
        }
    return {"Cookie": f"csrftoken={'a' * 32}", "Content-Type": FORM}


def head(path: str, headers: Mapping[str, str], *, method: str = "POST") -> bytes:
    """Return a request's line and headers."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode()


class SlowBodies:
    """`count` connections whose requests send a byte of their body each half a second, or none at all.

    A connection that the server closes is opened again, unless `is_once`. `held_seconds` are the times that
    each lasted.
    """

    def __init__(
        self,
        port: int,
        path: str,
        *,
        count: int,
        is_silent: bool = False,
        is_once: bool = False,
        **more_headers: str,
    ) -> None:
        self._port, self._count, self._is_silent, self._is_once = port, count, is_silent, is_once
        headers = {**made_up_headers(path), **more_headers, "Content-Length": str(CLAIMED_BYTES)}
        self._head = head(path, headers)
        self._stopped = threading.Event()
        self.held_seconds: list[float] = []
        self.statuses: Counter[str] = Counter()

    @contextlib.contextmanager
    def running(self) -> Iterator[SlowBodies]:
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(self._run)
            try:
                yield self
            finally:
                self._stopped.set()
                ended.result()

    def _run(self) -> None:
        selector = selectors.DefaultSelector()
        began: dict[socket.socket, float] = {}
        opened, last_byte = 0, 0.0
        while not self._stopped.is_set():
            while len(began) < self._count and not self._stopped.is_set():
                if self._is_once and opened == self._count:
                    break
                opened += 1
                connection = socket.create_connection((HOST, self._port), timeout=5)
                with contextlib.suppress(OSError):
                    connection.sendall(self._head)
                selector.register(connection, selectors.EVENT_READ)
                began[connection] = time.monotonic()
            now = time.monotonic()
            if not self._is_silent and now - last_byte >= 0.5:
                last_byte = now
                for connection in began:
                    with contextlib.suppress(OSError):
                        connection.send(b"x")
            for key, _ in selector.select(0.1):
                connection = key.fileobj  # type: ignore[assignment]
                try:
                    received = connection.recv(4096)
                except OSError:
                    received = b""
                if received.startswith(b"HTTP/1.1 "):
                    self.statuses[received[9:12].decode()] += 1
                if not received:
                    selector.unregister(connection)
                    self.held_seconds.append(time.monotonic() - began.pop(connection))
                    connection.close()
            self._stopped.wait(0.02)
        for connection in began:
            connection.close()
        selector.close()


class Repeated:
    """`clients` threads that call `ask` again and again, and count the statuses."""

    def __init__(self, ask: Callable[[], int], *, clients: int) -> None:
        self._ask, self._clients = ask, clients
        self._stopped = threading.Event()
        self.statuses: Counter[int] = Counter()
        self._counting = threading.Lock()

    @contextlib.contextmanager
    def running(self) -> Iterator[Repeated]:
        with ThreadPoolExecutor(self._clients) as pool:
            ended = [pool.submit(self._run) for _ in range(self._clients)]
            try:
                yield self
            finally:
                self._stopped.set()
                for future in ended:
                    future.result()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                status = self._ask()
            except requests.RequestException:
                status = 0
            with self._counting:
                self.statuses[status] += 1
            if status in (0, 503):
                time.sleep(0.05)


@dataclasses.dataclass
class Orders:
    """The answers to orders that a shop placed, and how long each took."""

    statuses: Counter[int] = dataclasses.field(default_factory=Counter)
    seconds: list[float] = dataclasses.field(default_factory=list)

    @property
    def refused(self) -> int:
        return sum(count for status, count in self.statuses.items() if status != 201)

    @property
    def p99(self) -> float:
        return sorted(self.seconds)[max(0, -(-len(self.seconds) * 99 // 100) - 1)]

    def __str__(self) -> str:
        total = sum(self.statuses.values())
        p99 = f"{self.p99 * 1000:.0f} ms"
        return f"{self.statuses[201]} of {total} accepted, p99 {p99}, {dict(self.statuses)}"


def place_orders(url: str, token: str, *, count: int, a_second: float = 5.0) -> Orders:
    """Place orders at a rate, each in a connection of its own, whether or not earlier ones were answered."""
    orders = Orders()

    def place() -> None:
        body: dict[str, Any] = {
            "user_id": str(uuid.uuid4()),
            "email": "ann@example.com",
            "total_amount": 4200,
        }
        began = time.perf_counter()
        try:
            status = requests.post(
                f"{url}/api/v1/orders",
                json=body,
                headers={"Authorization": f"Bearer {token}"},
                timeout=20,
            ).status_code
        except requests.RequestException:
            status = 0
        orders.seconds.append(time.perf_counter() - began)
        orders.statuses[status] += 1

    with ThreadPoolExecutor(min(count, 60)) as pool:
        for _ in range(count):
            pool.submit(place)
            time.sleep(1 / a_second)
    return orders
