"""Tells the relays, after a commit, that there are events: through Redis, in a thread nobody waits for.

Called by outbox.events.publish; heard by outbox.events.relay, which polls every half second all the same.
"""

from __future__ import annotations

import os

import redis
from django.conf import settings

from outbox.core.waker import Waker

CHANNEL = "orderpost:relay"
_clients: dict[int, redis.Redis] = {}


def _announce() -> None:
    pid = os.getpid()  # a connection is not shared over a fork
    if pid not in _clients:
        _clients.clear()
        _clients[pid] = redis.Redis.from_url(
            settings.REDIS_URL, socket_connect_timeout=0.25, socket_timeout=0.5
        )
    _clients[pid].publish(CHANNEL, b"")


#: After a commit that wrote an event: `waker.wake()`.
waker = Waker(_announce)
