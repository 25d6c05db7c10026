"""Make every Redis client: each call has a time limit, and the client repeats no call."""

from __future__ import annotations

import functools
from typing import Any

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry


def make_client(
    *, connect_seconds: float = 0.25, read_seconds: float = 0.5, decode: bool = False, url: str = ""
) -> redis.Redis:
    """Make a client of `url` (default: REDIS_URL) that raises `redis.RedisError` after these times.

    Answers are text if `decode`, otherwise bytes. The client connects at its first call. It must not be
    shared over a fork.
    """
    client = redis.Redis.from_url(
        url or settings.REDIS_URL,
        socket_connect_timeout=connect_seconds,
        socket_timeout=read_seconds,
        retry=Retry(NoBackoff(), 0),
        decode_responses=decode,
    )
    pool = client.connection_pool
    pool.connection_class = _leaving_replicas(pool.connection_class)
    return client


@functools.cache
def _leaving_replicas(connection_class: Any) -> Any:
    """Return a class of connections that disconnect from a server that refuses writes.

    After a switch-over, the address leads to another server, but redis-py would keep its open connections.
    """

    class Connection(connection_class):  # type: ignore[misc]  # a class that is known at run time
        def read_response(self, *args: Any, **options: Any) -> Any:
            try:
                return super().read_response(*args, **options)
            except redis.ReadOnlyError as error:
                self.disconnect()
                raise redis.ConnectionError(f"{error} The connection was closed.") from error

    return Connection
