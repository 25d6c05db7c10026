"""Count uses of a limit in Valkey, for all processes. While Valkey is away, nothing is limited.

A limit protects others, so it must not cause an outage itself.
"""

from __future__ import annotations

import functools
import time
from typing import NamedTuple

import redis
import structlog
from django.conf import settings

from runtime.process.redis_client import make_client

log = structlog.get_logger(__name__)

SECONDS = 0.25
AWAY_SECONDS = 1.0
_away_until = 0.0


class Count(NamedTuple):
    number: int  # with the present one, or 0 while Valkey is away
    seconds_left: int  # until the count begins at one again


def count(key: str, *, kept_seconds: int, away: str, by: int = 1) -> Count:
    """Add to a count that lasts `kept_seconds` from its first. Log `away` if Valkey does not answer."""
    global _away_until
    if time.monotonic() < _away_until:
        return Count(0, 0)
    try:
        pipe = _client(settings.REDIS_URL).pipeline(transaction=False)
        pipe.set(key, 0, ex=kept_seconds, nx=True)
        pipe.incrby(key, by)
        pipe.ttl(key)
        _, number, seconds_left = pipe.execute()
        return Count(int(number), max(int(seconds_left), 1))
    except redis.RedisError as error:
        _away_until = time.monotonic() + AWAY_SECONDS
        log.warning(away, error=str(error))
        return Count(0, 0)


@functools.cache
def _client(url: str) -> redis.Redis:
    return make_client(connect_seconds=SECONDS, read_seconds=SECONDS, url=url)
