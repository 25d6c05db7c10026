"""An open-loop HTTP client that costs little: one thread, one event loop, requests made of bytes.

    python -m benchmarks.load < plan.json > latencies.json

The plan is JSON: host, port, connections, rate (requests a second), and requests (each the bytes of one, as
text). A request is due at its time whatever became of those before it, and its latency counts from then:
waiting for a free connection is the server's slowness, not the client's. Answers {"latencies": [ms …],
"statuses": {"200": n}, "late": [ms …]}; `late` is how far behind its own plan the client was. A process of
its own, so that nobody else's GIL is in its way.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections import Counter, deque
from typing import Any


class _Connection(asyncio.Protocol):
    """A kept-alive connection; one request at a time."""

    def __init__(self, client: _Client) -> None:
        self.client = client
        self.due = 0.0
        self.buffer = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.client.free.append(self)

    def send(self, request: bytes, due: float) -> None:
        """Write a request to the socket."""
        assert self.transport is not None
        self.due, self.buffer = due, b""
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, end, body = self.buffer.partition(b"\r\n\r\n")
        if not end:
            return
        lower = head.lower()
        at = lower.find(b"content-length:")
        length = int(lower[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(body) >= length:
            self.client.answered(self, head[9:12].decode())

    def connection_lost(self, _: Exception | None) -> None:
        self.client.lost(self)


class _Client:
    def __init__(self, plan: dict[str, Any]) -> None:
        self.host, self.port = plan["host"], plan["port"]
        self.rate, self.connections = float(plan["rate"]), int(plan["connections"])
        self.requests = [text.encode() for text in plan["requests"]]
        self.free: deque[_Connection] = deque()
        self.waiting: deque[tuple[bytes, float]] = deque()
        self.latencies: list[float] = []
        self.late: list[float] = []
        self.statuses: Counter[str] = Counter()
        self.done = asyncio.Event()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(self.connections):
            await loop.create_connection(lambda: _Connection(self), self.host, self.port)
        gc.disable()
        start = time.perf_counter() + 0.2
        for number, request in enumerate(self.requests):
            due = start + number / self.rate
            if (wait := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            self.late.append((time.perf_counter() - due) * 1000)
            if self.free:
                self.free.popleft().send(request, due)
            else:
                self.waiting.append((request, due))
        await asyncio.wait_for(self.done.wait(), 120)

    def answered(self, connection: _Connection, status: str) -> None:
        """Record an answer and give the connection the next request."""
        self.latencies.append((time.perf_counter() - connection.due) * 1000)
        self.statuses[status] += 1
        connection.due = 0.0
        if self.waiting:
            connection.send(*self.waiting.popleft())
        else:
            self.free.append(connection)
        if len(self.latencies) == len(self.requests):
            self.done.set()

    def lost(self, connection: _Connection) -> None:
        """Count a connection that ended in the middle of a request."""
        if connection.due:
            self.answered(connection, "lost")
        if connection in self.free:
            self.free.remove(connection)


def main() -> None:
    """Read the plan, run it, print what was seen."""
    client = _Client(json.load(sys.stdin))
    asyncio.run(client.run())
    json.dump({"latencies": client.latencies, "statuses": client.statuses, "late": client.late}, sys.stdout)


if __name__ == "__main__":
    main()
