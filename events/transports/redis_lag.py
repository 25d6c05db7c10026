"""Count the entries of Redis Streams that a group has not read, and those that it has not acknowledged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import redis

from events.transports.base import BrokerAway, Lag
from runtime.process.redis_client import make_client


def consumer_lags(*, topics: Sequence[str], group: str) -> list[Lag]:
    """Return the lag of each topic, in two round trips. Raise `BrokerAway`."""
    try:
        with make_client(decode=True) as client:
            return _ask(client, list(topics), group)
    except redis.RedisError as error:
        raise BrokerAway(str(error)) from error


def _ask(client: redis.Redis, topics: list[str], group: str) -> list[Lag]:
    pipe = client.pipeline(transaction=False)
    pipe.time()
    for topic in topics:
        pipe.xlen(topic)
        pipe.xinfo_groups(topic)
        pipe.xpending(topic, group)
    (seconds, micros), *answers = pipe.execute(raise_on_error=False)
    now = seconds * 1000 + micros / 1000
    counts: dict[str, int] = {}
    oldest: dict[str, str | None] = {}  # the id of the first entry without acknowledgement, if known
    pipe = client.pipeline(transaction=False)
    asked = []
    for topic, length, groups, pending in zip(
        topics, answers[::3], answers[1::3], answers[2::3], strict=True
    ):
        if isinstance(length, Exception):
            continue  # no stream
        mine = _group(groups, group)
        unread = length if mine is None or mine["lag"] is None else mine["lag"]
        waiting = 0 if isinstance(pending, Exception) else pending["pending"]
        counts[topic] = min(length, unread + waiting)
        oldest[topic] = pending["min"] if waiting else None
        if unread and not waiting:
            pipe.xrange(topic, f"({mine['last-delivered-id']}" if mine else "-", "+", count=1)
            asked.append(topic)
    for topic, entries in zip(asked, pipe.execute() if asked else [], strict=True):
        oldest[topic] = entries[0][0] if entries else None
    return [Lag(topic, counts.get(topic, 0), _age(oldest.get(topic), now)) for topic in topics]


def _group(groups: Any, name: str) -> Mapping[str, Any] | None:
    """Return Redis' record of a group, or None if no consumer has made it."""
    if isinstance(groups, Exception):
        return None
    return next((one for one in groups if one["name"] == name), None)


def _age(id: str | None, now: float) -> float:
    return 0.0 if id is None else max(0.0, (now - int(id.partition("-")[0])) / 1000)
