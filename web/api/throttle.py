"""`API_RATE_LIMIT`: limit the requests per second of a token. Redis counts them for all web processes.

The limit is off by default, and then no request calls Redis. While Redis is away the limit refuses no
request: what protects the database must not cause an outage.
"""

from __future__ import annotations

import functools
import time

import redis
import structlog
from django.conf import settings
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from runtime.process.redis_client import make_client
from web.api.problem_types import TOO_MANY_REQUESTS
from web.api.problems import Problem
from web.models import ApiToken

log = structlog.get_logger(__name__)

PREFIX = "orderpost:requests:"
SECONDS = 0.25
AWAY_SECONDS = 1.0
KEPT_SECONDS = 5  # longer than the second of the count: clocks differ
_away_until = 0.0


class TokenThrottle(BaseThrottle):
    """Counts each token's requests in the current second."""

    def allow_request(self, request: Request, view: object) -> bool:
        """Return True, or raise the 429 problem."""
        token = request.auth
        limit = settings.API_RATE_LIMIT
        if not limit or not isinstance(token, ApiToken) or count_request(str(token.id)) <= limit:
            return True
        raise Problem(
            TOO_MANY_REQUESTS,
            detail=f"This token may send {limit} requests a second. Nothing was changed; send it later.",
            headers={"Retry-After": "1"},
        )


def count_request(sender: str) -> int:
    """Count this request. Return the sender's requests in this second, or 0 while Redis is away."""
    global _away_until
    if time.monotonic() < _away_until:
        return 0
    key = f"{PREFIX}{sender}:{int(time.time())}"
    try:
        pipe = _client(settings.REDIS_URL).pipeline(transaction=False)
        pipe.incr(key)
        pipe.expire(key, KEPT_SECONDS)
        return int(pipe.execute()[0])
    except redis.RedisError as error:
        _away_until = time.monotonic() + AWAY_SECONDS
        log.warning("requests are not counted: Redis is away", error=str(error))
        return 0


@functools.cache
def _client(url: str) -> redis.Redis:
    return make_client(connect_seconds=SECONDS, read_seconds=SECONDS, url=url)
