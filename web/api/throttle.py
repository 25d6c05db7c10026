"""`API_RATE_LIMIT`: limit the requests per second of a token. Redis counts them for all web processes.

The limit is off by default, and then no request calls Redis. While Redis is away the limit refuses no
request.
"""

from __future__ import annotations

import time

from django.conf import settings
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from runtime.process.counts import count
from web.api.problem_types import TOO_MANY_REQUESTS
from web.api.problems import Problem
from web.models import ApiToken

PREFIX = "orderpost:requests:"
KEPT_SECONDS = 5  # longer than the second of the count: clocks differ


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
    key = f"{PREFIX}{sender}:{int(time.time())}"
    away = "requests are not counted: Redis is away"
    return count(key, kept_seconds=KEPT_SECONDS, away=away).number
