"""Record every order event of the broker, in the broker's order."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, NamedTuple

import redis

from tests.kit.waiting import PATIENCE

TOPICS = [
    f"order.order.{what}.v1"
    for what in ("placed", "paid", "confirmed", "completed", "cancelled", "refunded", "part_refunded")
]


class Seen(NamedTuple):
    """An event on the broker, and its millisecond, which is the only order between two streams."""

    event: str
    order: str
    at: int


class Listener:
    """Read all streams from their beginnings, also after restarts and flushes."""

    def __init__(self, *, url: str) -> None:
        self.url = url
        self.seen: list[Seen] = []
        self._last: Any = dict.fromkeys(TOPICS, "0-0")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE)

    def has_read_all(self) -> bool:
        """Return whether each stream's newest entry is read. Raise `redis.RedisError` if Valkey is away."""
        with redis.Redis.from_url(self.url, decode_responses=True) as client:
            newest: Any = {topic: client.xrevrange(topic, count=1) for topic in TOPICS}
        return all(entries[0][0] == self._last[topic] for topic, entries in newest.items() if entries)

    def _run(self) -> None:
        client = redis.Redis.from_url(self.url, socket_timeout=2, socket_connect_timeout=1)
        while not self._stop.is_set():
            try:
                answer: Any = client.xread(self._last, count=100_000, block=200)
            except redis.RedisError:
                time.sleep(0.1)
                continue
            # Sort by id over all topics, because an order's events are on several.
            in_order = sorted(
                (tuple(map(int, id.split(b"-"))), topic, fields)
                for topic, entries in answer or []
                for id, fields in entries
            )
            for id, topic, fields in in_order:
                envelope = json.loads(fields[b"value"])
                self.seen.append(Seen(envelope["eventId"], envelope["data"]["orderId"], id[0]))
                self._last[topic.decode()] = f"{id[0]}-{id[1]}"
