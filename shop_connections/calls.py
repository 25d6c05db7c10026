"""Count the calls of a connection's address that the shop did not sign, in Valkey, for a day.

Anybody can send one, so they have no rows. While Valkey is away nothing is counted, and no answer depends on
it.
"""

from __future__ import annotations

import datetime as dt
import functools
import time
import uuid

import redis
import structlog
from django.conf import settings

from runtime.process.redis_client import make_client
from shop_connections.setup import Calls

log = structlog.get_logger(__name__)

PREFIX = "orderpost:connect:"
KEPT = dt.timedelta(days=1)
SECONDS, AWAY_SECONDS = 0.25, 1.0
_away_until = 0.0


def note_call(id: uuid.UUID, *, is_refused: bool) -> None:
    """Note a call of a connection's address. One that `is_refused` had another signature."""
    now = str(int(time.time()))
    values = {"reached_at": now} | ({"refused_at": now} if is_refused else {})
    _ask(id, values, count=int(is_refused))


def read_calls(id: uuid.UUID) -> Calls:
    """Return the calls of a day, or none while Valkey is away."""
    values = _ask(id, {}, count=0)
    times = {
        name: dt.datetime.fromtimestamp(int(values[name]), dt.UTC)
        for name in ("refused_at", "reached_at")
        if name in values
    }
    return Calls(refused=int(values.get("refused", 0)), **times)


def forget_calls(id: uuid.UUID) -> None:
    """Begin to count anew, because another secret is the right one now."""
    _ask(id, None, count=0)


def _ask(id: uuid.UUID, values: dict[str, str] | None, *, count: int) -> dict[str, str]:
    """Store values and count a refusal, delete all for None, or return what is stored for no values."""
    global _away_until
    if time.monotonic() < _away_until:
        return {}
    key = f"{PREFIX}{id}"
    try:
        pipe = _client(settings.REDIS_URL).pipeline(transaction=False)
        if values is None:
            pipe.delete(key)
        elif values:
            for name, value in values.items():
                pipe.hset(key, name, value)
            pipe.hincrby(key, "refused", count)
            pipe.expire(key, KEPT, nx=True)  # a day from the first one
        else:
            pipe.hgetall(key)
        answer = pipe.execute()[0]
        return answer if isinstance(answer, dict) else {}
    except redis.RedisError as error:
        _away_until = time.monotonic() + AWAY_SECONDS
        log.warning("calls of a shop are not counted: Valkey is away", error=str(error))
        return {}


@functools.cache
def _client(url: str) -> redis.Redis:
    return make_client(connect_seconds=SECONDS, read_seconds=SECONDS, decode=True, url=url)
