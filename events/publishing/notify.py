"""Wake the relays through Redis after a commit that wrote events.

A wake-up is only a hint: a relay also polls every half second. `notify` runs in a thread for which no caller
waits.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time

import redis

from runtime.process.redis_client import make_client
from runtime.process.waker import Waker

CHANNEL = "orderpost:relay"
_clients: dict[int, redis.Redis] = {}


def notify() -> None:
    """Wake every relay. Raise `redis.RedisError`."""
    pid = os.getpid()  # a connection must not be shared over a fork
    if pid not in _clients:
        _clients.clear()
        _clients[pid] = make_client()
    _clients[pid].publish(CHANNEL, b"")


#: Call `waker.wake()` after a commit that wrote an event.
waker = Waker(notify, target="relay")


class Listener:
    """Receive the wake-ups of one relay. If Redis is away, only wait."""

    def __init__(self) -> None:
        self._pubsub: redis.client.PubSub | None = None

    def wait(self, *, seconds: float, stopped: threading.Event) -> None:
        """Return when woken, when `stopped`, or after `seconds`."""
        try:
            if self._pubsub is None:
                client = make_client(connect_seconds=1, read_seconds=2)
                self._pubsub = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
                self._pubsub.subscribe(CHANNEL)
            deadline = time.monotonic() + seconds
            while (left := deadline - time.monotonic()) > 0 and not stopped.is_set():
                if self._pubsub.get_message(timeout=left):
                    return
        except (redis.RedisError, OSError):
            self.close()
            stopped.wait(seconds)

    def close(self) -> None:
        if self._pubsub is not None:
            with contextlib.suppress(redis.RedisError, OSError):
                self._pubsub.close()
            self._pubsub = None
