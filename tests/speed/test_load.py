"""The load client of `make bench`: open loop, honest latencies, every answer counted."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from local.machine import HOST, PROJECT
from tests.kit.waiting import PATIENCE


class Shop(http.server.BaseHTTPRequestHandler):
    """Answers as the API does; `refused` orders are not placed, `pause` is slept before each answer."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet for each answer
    refused: set[int] = set()
    pause = 0.0
    seen: list[tuple[str, str, bytes]] = []
    lock = threading.Lock()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers["Idempotency-Key"]
        with self.lock:
            self.seen.append((self.path, key, body))
            time.sleep(self.pause)
        number = int(key.rpartition("-")[2])
        is_place = self.path == "/api/v1/orders"
        self.send_response(503 if is_place and number in self.refused else 201 if is_place else 200)
        self.send_header("Location", f"/api/v1/orders/{number}")
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def shop() -> Iterator[tuple[int, type[Shop]]]:
    kind = type("OneShop", (Shop,), {"seen": [], "lock": threading.Lock()})
    with http.server.ThreadingHTTPServer((HOST, 0), kind) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port, kind
        server.shutdown()


def load(port: int, **plan: Any) -> dict[str, Any]:
    values = {
        "host": HOST,
        "port": port,
        "token": "t",
        "run": "r",
        "rate": 200,
        "orders": 40,
        "connections": 4,
    }
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(PROJECT / "benchmarks" / "load.py")],
        input=json.dumps(values | plan),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def test_each_order_is_placed_and_then_paid_once_under_keys_of_its_own(shop):
    port, kind = shop
    seen = load(port)
    assert seen["statuses"] == {"201": 40, "200": 40}
    assert len(seen["place"]) == len(seen["pay"]) == 40
    assert len({key for _, key, _ in kind.seen}) == 80
    order = [path for path, _, _ in kind.seen]
    assert all(order.index(f"/api/v1/orders/{number}/pay") > number for number in range(40))
    assert json.loads(kind.seen[0][2])["total_amount"] == 4990


def test_an_order_that_is_not_placed_is_an_error_twice_and_is_not_paid(shop):
    port, kind = shop
    kind.refused = {3, 7}
    seen = load(port)
    assert seen["statuses"] == {"201": 38, "503": 2, "200": 38, "not paid": 2}
    assert "/api/v1/orders/3/pay" not in [path for path, _, _ in kind.seen]


def test_a_latency_counts_from_the_time_at_which_the_request_was_due(shop):
    port, kind = shop
    kind.pause = 0.02  # one at a time: 80 requests take 1.6 s, though all are due within 1.04 s
    seen = load(port, rate=1000, connections=2)
    # The last placed order was due 0.04 s after the first and answered after 40 pauses at the earliest.
    assert max(seen["place"]) > 40 * 20 - 40 - 1
