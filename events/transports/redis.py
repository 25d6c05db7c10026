"""Redis Streams: a stream for each topic, trimmed to about EVENT_STREAM_LENGTH entries.

An entry has the fields `key` and `value` (the envelope as JSON), and one for each header. If several
consumers of a group read a stream, each would get some of its entries, and those of one key would lose their
order. Each stream therefore has one owner at a time, through a lease in the same Redis, and every owner reads
as the same member of the group. A new owner begins with the entries that the last one left unacknowledged,
oldest first. One script checks the lease and reads: a process that lost the lease reads nothing.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import redis
import structlog
from django.conf import settings

from events.transports import base
from events.transports.base import (
    BrokerAnswer,
    BrokerAway,
    Lag,
    Message,
    MessageRefused,
    Received,
    TopicUnavailable,
    time_of,
)
from runtime.process.redis_client import make_client

log = structlog.get_logger(__name__)

CONNECT_SECONDS, READ_SECONDS = 1.0, 5.0
REPLICAS_SECONDS = 1.0  # how long to wait until EVENT_REPLICAS replicas have a batch
LEASE_SECONDS = 3.0
KEEP_SECONDS = 1.0  # between two renewals
RETRY_SECONDS = 5.0  # between two reads of a stream that cannot be read
OWNER = "owner"  # the member as which every owner of a stream reads
BATCH = 100
BATCH_BYTES = 8_000_000
#: Errors of one entry.
_ABOUT_THE_MESSAGE = ("string exceeds maximum allowed size", "Protocol error: invalid bulk length")
#: Errors of the broker. Any other is of the stream, for example a wrong type, no permission, or no ids left.
_ABOUT_THE_BROKER = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.ReadOnlyError,
    redis.OutOfMemoryError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
)
_ABOUT_THE_BROKER_TOO = ("MISCONF", "NOREPLICAS", "BUSY ", "UNKILLABLE")
# Lua scripts.
#: Join the consumers of a group. Return their number. KEYS: members. ARGV: member, seconds.
_JOIN = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[2]))
redis.call('EXPIRE', KEYS[1], 60)
return redis.call('ZCARD', KEYS[1])
"""
#: Take a lease that is free or ours. Return whether it is ours now. KEYS: lease. ARGV: member, milliseconds.
_TAKE = """
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
#: Renew a lease that has not expired. Return whether it was ours. KEYS: lease. ARGV: member, milliseconds.
_RENEW = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
#: Give a lease back. KEYS: lease. ARGV: member.
_RELEASE = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"
#: Read entries if the lease is ours. Return only the first ones if all exceed the bytes.
#: KEYS: lease, stream. ARGV: member, group, owner, id, count, bytes.
_READ = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {0, {}, 0} end
local answer = redis.call(
    'XREADGROUP', 'GROUP', ARGV[2], ARGV[3], 'COUNT', ARGV[5], 'STREAMS', KEYS[2], ARGV[4])
if not answer then return {1, {}, 0} end
local entries, size = answer[1][2], 0
for i, entry in ipairs(entries) do
    for _, field in ipairs(entry[2] or {}) do size = size + #field end
    if size > tonumber(ARGV[6]) and i > 1 then return {1, {unpack(entries, 1, i - 1)}, 1} end
end
return {1, entries, 0}
"""


def _client() -> redis.Redis:
    return make_client(connect_seconds=CONNECT_SECONDS, read_seconds=READ_SECONDS)


class RedisPublisher(base.BrokerPublisher):
    """Send XADD commands in one write. They need no transaction, because entries are independent."""

    def __init__(self) -> None:
        self._client = _client()

    def check(self) -> None:
        """Also check that enough replicas follow. A failed try would add its entries again."""
        try:
            self._client.ping()
            if replicas := settings.EVENT_REPLICAS:
                _check_replicas(self._client.wait(replicas, int(REPLICAS_SECONDS * 1000)))
        except redis.RedisError as error:
            raise BrokerAway(str(error)) from error

    def publish(self, messages: Sequence[Message]) -> list[BrokerAnswer]:
        pipe = self._client.pipeline(transaction=False)
        for message in messages:
            fields: dict[Any, Any] = {"key": message.key, "value": message.value, **dict(message.headers)}
            pipe.xadd(message.topic, fields, maxlen=settings.EVENT_STREAM_LENGTH, approximate=True)
        if replicas := settings.EVENT_REPLICAS:
            pipe.wait(replicas, int(REPLICAS_SECONDS * 1000))
        try:
            answers = pipe.execute(raise_on_error=False)
        except redis.RedisError as error:
            raise BrokerAway(str(error)) from error
        if replicas:
            _check_replicas(answers.pop())
        return [_read_answer(answer) if isinstance(answer, redis.RedisError) else None for answer in answers]

    def close(self) -> None:
        self._client.close()


def _check_replicas(having: int | redis.RedisError) -> None:
    """Raise `BrokerAway` unless the answer of WAIT counts enough replicas."""
    replicas = settings.EVENT_REPLICAS
    if isinstance(having, redis.RedisError) or having < replicas:
        raise BrokerAway(f"{having} of {replicas} replicas have the events")


def _read_answer(answer: redis.RedisError) -> BrokerAnswer:
    text = str(answer)
    if any(words in text for words in _ABOUT_THE_MESSAGE):
        return MessageRefused(text)
    if isinstance(answer, _ABOUT_THE_BROKER) or text.startswith(_ABOUT_THE_BROKER_TOO):
        return BrokerAway(text)
    return TopicUnavailable(text)


class Stream:
    """A stream that this process owns."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        #: Read the unacknowledged entries after this id. When none is left, it is ">", for new entries.
        self.read_id = "0"
        #: A wait returns when the stream has an entry after this id.
        self.last_id = "$"


class RedisConsumer(base.BrokerConsumer):
    """Own a fair share of a group's streams, and read each of them in order."""

    def __init__(self, *, topics: Sequence[str], group: str, name: str) -> None:
        self._client = _client()
        self._topics, self._group, self._name = list(topics), group, name
        self._owned: dict[str, Stream] = {}
        self._not_before: dict[str, float] = {}  # when to try a stream again that could not be read
        self._kept_at = -math.inf
        self._join = self._client.register_script(_JOIN)
        self._take_lease = self._client.register_script(_TAKE)
        self._renew_lease = self._client.register_script(_RENEW)
        self._release = self._client.register_script(_RELEASE)
        self._read = self._client.register_script(_READ)

    def receive(self, *, seconds: float) -> list[Received]:
        try:
            self._keep()
            batch = [
                received for stream in list(self._owned.values()) for received in self._read_stream(stream)
            ]
            if not batch:
                self._wait(seconds)
        except redis.RedisError as error:
            self._owned.clear()  # a broker that lost its data has lost the groups, too
            self._kept_at = -math.inf
            raise BrokerAway(str(error)) from error
        return batch

    def done(self, messages: Sequence[Received]) -> None:
        pipe = self._client.pipeline(transaction=False)
        for message in messages:
            topic, id = cast("tuple[str, bytes]", message.token)
            pipe.xack(topic, self._group, id)
        try:
            pipe.execute()
            self._keep()
        except redis.RedisError as error:
            raise BrokerAway(str(error)) from error

    def close(self) -> None:
        """Give the streams back at once. Their next owners get the entries without an acknowledgement."""
        try:
            if self._kept_at > -math.inf:  # else the broker has not answered, and a try would take seconds
                for topic in self._owned:
                    self._release(keys=[self._lease_of(topic)], args=[self._name])
                self._client.zrem(self._members, self._name)
        except redis.RedisError as error:
            log.info("leases end by themselves", error=str(error), seconds=LEASE_SECONDS)
        self._owned.clear()
        self._client.close()

    @property
    def _members(self) -> str:
        return f"orderpost:consumers:{self._group}"

    @property
    def _terms(self) -> list[str | int]:
        return [self._name, int(LEASE_SECONDS * 1000)]

    def _lease_of(self, topic: str) -> str:
        return f"orderpost:owner:{self._group}:{topic}"

    # --- ownership ---
    def _keep(self) -> None:
        """Renew the leases, give some back for a new consumer, and take free ones up to a fair share."""
        if time.monotonic() - self._kept_at < KEEP_SECONDS:
            return
        self._kept_at = time.monotonic()
        members = int(self._join(keys=[self._members], args=[self._name, LEASE_SECONDS]))
        fair = -(-len(self._topics) // max(1, members))
        for topic in list(self._owned)[fair:]:
            self._release(keys=[self._lease_of(topic)], args=[self._name])
            del self._owned[topic]
        for topic in list(self._owned):
            # An expired lease is not renewed: another owner may have read meanwhile. Begin again.
            if not self._renew_lease(keys=[self._lease_of(topic)], args=self._terms):
                del self._owned[topic]
        for topic in random.sample(self._topics, len(self._topics)):
            if len(self._owned) >= fair:
                break
            if topic not in self._owned and self._not_before.get(topic, 0) <= time.monotonic():
                self._take(topic)

    def _take(self, topic: str) -> None:
        if not self._take_lease(keys=[self._lease_of(topic)], args=self._terms):
            return
        try:
            self._owned[topic] = self._begin(topic)
        except redis.ResponseError as error:
            self._give_up(topic, error)

    def _give_up(self, topic: str, error: redis.ResponseError) -> None:
        """Leave a stream that cannot be read for `RETRY_SECONDS`. Raise `error` if it is of the broker."""
        if not isinstance(_read_answer(error), TopicUnavailable) or "NOGROUP" in str(error):
            raise error
        log.error("stream cannot be read", topic=topic, error=str(error), seconds=RETRY_SECONDS)
        self._not_before[topic] = time.monotonic() + RETRY_SECONDS
        self._owned.pop(topic, None)
        self._release(keys=[self._lease_of(topic)], args=[self._name])

    def _begin(self, topic: str) -> Stream:
        try:
            self._client.xgroup_create(topic, self._group, id="0", mkstream=True)
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        stream = Stream(topic)
        for group in self._client.xinfo_groups(topic):
            if _text(group["name"]) == self._group:
                stream.last_id = _text(group["last-delivered-id"])
                self._log_trimmed(topic, group)
        return stream

    def _log_trimmed(self, topic: str, group: Mapping[str, Any]) -> None:
        """Log how many entries were trimmed that the group has never read.

        Redis trims the oldest first, so nothing is lost while the stream has an entry that was read. The lag
        also counts trimmed entries. It is None if Redis does not know it.
        """
        if self._client.xrange(topic, "-", group["last-delivered-id"], count=1):
            return
        length = int(self._client.xlen(topic))
        lost = (group.get("lag") or 0) - length
        if length and lost > 0:
            log.error("events were trimmed before they were taken", topic=topic, count=lost)

    # --- entries ---
    def _read_stream(self, stream: Stream) -> list[Received]:
        keys = [self._lease_of(stream.topic), stream.topic]
        args: list[str | int] = [self._name, self._group, OWNER, stream.read_id, BATCH, BATCH_BYTES]
        try:
            mine, entries, more = self._read(keys=keys, args=args)
        except redis.ResponseError as error:
            self._give_up(stream.topic, error)
            return []
        if not mine:
            self._owned.pop(stream.topic, None)
            return []
        if entries:
            last = _text(entries[-1][0])
            if stream.read_id != ">" or more:
                stream.read_id = last  # the rest is unacknowledged, too
            else:
                stream.last_id = last
        elif stream.read_id != ">":
            stream.read_id = ">"
            return self._read_stream(stream)
        trimmed = [id for id, fields in entries if not fields]
        if trimmed:
            log.error("events were trimmed before they were taken", topic=stream.topic, count=len(trimmed))
            self._client.xack(stream.topic, self._group, *trimmed)
        return [self._received(stream.topic, id, fields) for id, fields in entries if fields]

    def _received(self, topic: str, id: bytes, fields: Sequence[bytes]) -> Received:
        pairs = list(zip(fields[::2], fields[1::2], strict=True))
        written_at = time_of(int(id.partition(b"-")[0]))
        # An entry may have a field twice. Both values together are no JSON, so nobody chooses one of them.
        key, value = (
            b"\n".join(text for name, text in pairs if name == field) for field in (b"key", b"value")
        )
        return Received(topic, key.decode("utf-8", base.KEY_ERRORS), value, (topic, id), written_at)

    def _wait(self, seconds: float) -> None:
        """Return when a stream has a new entry, or after `seconds`."""
        if not self._owned:
            time.sleep(seconds)
            return
        after = {stream.topic: stream.last_id for stream in self._owned.values()}
        answer = self._client.xread(cast(Any, after), count=1, block=max(1, int(seconds * 1000)))
        for topic, entries in cast("list[Any]", answer or []):
            # A member with another name may have read it. Without this, the next wait would return at once.
            self._owned[_text(topic)].last_id = _text(entries[-1][0])


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


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
    return next((group for group in groups if group["name"] == name), None)


def _age(id: str | None, now: float) -> float:
    return 0.0 if id is None else max(0.0, (now - int(id.partition("-")[0])) / 1000)
