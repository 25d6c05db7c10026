"""`API_RATE_LIMIT`: how many requests a second one token may send, counted in Redis over all web processes.

Off by default, and then no trip to Redis. While Redis is away nobody is refused: a limit that guards the
database is not worth an outage of its own.
"""

from __future__ import annotations

import functools
import time

import redis
import structlog
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from outbox.api.problems import Problem
from outbox.models import ApiToken

log = structlog.get_logger(__name__)

PREFIX = "orderpost:requests:"
SECONDS = 0.25
AWAY_SECONDS = 1.0
_away_until = 0.0


class TokenThrottle(BaseThrottle):
    """Counts a token's requests of the present second."""

    def allow_request(self, request: Request, view: object) -> bool:
        """Return True, or raise the 429 problem."""
        token = request.auth
        limit = settings.API_RATE_LIMIT
        if not limit or not isinstance(token, ApiToken) or _count(str(token.id)) <= limit:
            return True
        raise Problem(
            status=429,
            slug="too-many-requests",
            title="Too many requests",
            detail=f"This token may send {limit} requests a second. Nothing was changed; send it later.",
            headers={"Retry-After": "1"},
        )


def _count(token: str) -> int:
    """How many requests this second has had, this one included; 0 while Redis is away."""
    global _away_until
    if time.monotonic() < _away_until:
        return 0
    key = f"{PREFIX}{token}:{int(time.time())}"
    try:
        pipe = _client(settings.REDIS_URL).pipeline(transaction=False)
        pipe.incr(key)
        pipe.expire(key, 5)
        return int(pipe.execute()[0])
    except redis.RedisError as error:
        _away_until = time.monotonic() + AWAY_SECONDS
        log.warning("requests are not counted: Redis is away", error=str(error))
        return 0


@functools.cache
def _client(url: str) -> redis.Redis:
    retry = Retry(NoBackoff(), 0)
    return redis.Redis.from_url(url, socket_connect_timeout=SECONDS, socket_timeout=SECONDS, retry=retry)
