"""Redis Streams: a stream for each topic, trimmed to about EVENT_STREAM_LENGTH entries.

An entry has two fields, `key` and `value` (the envelope as JSON). A consumer that died leaves its entries
pending; another takes those over that nobody has touched for `TAKE_OVER_SECONDS`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, cast

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from outbox.events.transports import base
from outbox.events.transports.base import BrokerAway, Message, Received, Refused

CONNECT_SECONDS, READ_SECONDS = 1.0, 5.0
TAKE_OVER_SECONDS = 30.0
BATCH = 100
#: Answers about one entry, not about the broker.
_ABOUT_THE_MESSAGE = ("string exceeds maximum allowed size", "Protocol error: invalid bulk length")


def _client() -> redis.Redis:
    return redis.Redis.from_url(
        settings.REDIS_URL,
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=READ_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )


class Publisher(base.Publisher):
    """XADD in one pipeline."""

    def __init__(self) -> None:
        self._client = _client()

    def publish(self, messages: Sequence[Message]) -> list[Refused | None]:
        """See the base class; without a transaction, for each entry stands for itself."""
        pipe = self._client.pipeline(transaction=False)
        for message in messages:
            pipe.xadd(
                message.topic,
                {"key": message.key, "value": message.value},
                maxlen=settings.EVENT_STREAM_LENGTH,
                approximate=True,
            )
        try:
            answers = pipe.execute(raise_on_error=False)
        except redis.RedisError as error:
            raise BrokerAway(str(error)) from error
        return [self._read(answer) for answer in answers]

    def _read(self, answer: object) -> Refused | None:
        if not isinstance(answer, Exception):
            return None
        if any(words in str(answer) for words in _ABOUT_THE_MESSAGE):
            return Refused(str(answer))
        raise BrokerAway(str(answer)) from answer  # out of memory, loading, read only

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


class Consumer(base.Consumer):
    """XREADGROUP, with the entries of dead members taken over."""

    def __init__(self, *, topics: Sequence[str], group: str, name: str) -> None:
        self._client = _client()
        self._topics, self._group, self._name = list(topics), group, name
        self._made: set[str] = set()
        self._swept_at = 0.0

    def receive(self, *, seconds: float) -> list[Received]:
        """What was left by others first, then what is new."""
        try:
            self._make_groups()
            found = self._take_over()
            if not found:
                answer = self._client.xreadgroup(
                    self._group,
                    self._name,
                    dict.fromkeys(self._topics, ">"),
                    count=BATCH,
                    block=max(1, int(seconds * 1000)),
                )
                found = [(topic, entries) for topic, entries in cast("list[Any]", answer or [])]
        except redis.RedisError as error:
            self._made.clear()  # a broker that lost its data has no groups either
            raise BrokerAway(str(error)) from error
        return [
            Received(
                _text(topic), _text(fields.get(b"key", b"")), fields.get(b"value", b""), (_text(topic), id)
            )
            for topic, entries in found
            for id, fields in entries
            if fields is not None
        ]

    def done(self, messages: Sequence[Received]) -> None:
        """XACK, in one pipeline."""
        pipe = self._client.pipeline(transaction=False)
        for message in messages:
            topic, id = cast("tuple[str, bytes]", message.token)
            pipe.xack(topic, self._group, id)
        try:
            pipe.execute()
        except redis.RedisError as error:
            raise BrokerAway(str(error)) from error

    def close(self) -> None:
        """Close the connections; what was not acknowledged is left to the others."""
        self._client.close()

    def _make_groups(self) -> None:
        for topic in self._topics:
            if topic in self._made:
                continue
            try:
                self._client.xgroup_create(topic, self._group, id="0", mkstream=True)
            except redis.ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
            self._made.add(topic)

    def _take_over(self) -> list[tuple[str, list[Any]]]:
        if time.monotonic() - self._swept_at < TAKE_OVER_SECONDS / 6:
            return []
        self._swept_at = time.monotonic()
        found = []
        for topic in self._topics:
            answer = self._client.xautoclaim(
                topic,
                self._group,
                self._name,
                min_idle_time=int(TAKE_OVER_SECONDS * 1000),
                start_id="0-0",
                count=BATCH,
            )
            if answer[1]:
                found.append((topic, answer[1]))
        return found


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
