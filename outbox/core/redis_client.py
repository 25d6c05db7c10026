"""The one way to a Redis client: each call has a time limit, and the client repeats none by itself."""

from __future__ import annotations

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry


def make_client(
    *, connect_seconds: float = 0.25, read_seconds: float = 0.5, decode: bool = False, url: str = ""
) -> redis.Redis:
    """Make a client of `url` (default: REDIS_URL) that raises `redis.RedisError` after these times.

    With `decode` answers are text, else bytes. The client opens its connections when they are first needed;
    it must not be shared over a fork.
    """
    return redis.Redis.from_url(
        url or settings.REDIS_URL,
        socket_connect_timeout=connect_seconds,
        socket_timeout=read_seconds,
        retry=Retry(NoBackoff(), 0),
        decode_responses=decode,
    )
