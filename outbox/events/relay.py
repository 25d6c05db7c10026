"""Publishes `outbox_events` to the broker: at least once, and in order for each aggregate.

Events carry a shard (a hash of their aggregate); a relay owns shards through advisory locks of its direct
session, so a dead relay's shards are free within seconds and no two ever publish the same aggregate at once.
There are no claims and no leases. A batch goes out in waves of at most one event for each aggregate: what
fails holds back the later events of its own aggregate and nobody else's. A broker that is away uses up no
retry. Called by `manage.py relay_outbox`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import redis
import structlog
from django.conf import settings
from django.db import connections

from outbox.core.backoff import ceiling
from outbox.events.notify import CHANNEL
from outbox.events.transports import BrokerAway, Message, Publisher, Refused, publisher
from outbox.models import SHARDS

log = structlog.get_logger(__name__)

BATCH = 500
POLL_SECONDS = 0.5
DEBOUNCE_SECONDS = 0.03  # between two looks while there is little: a look costs more than an event
MEMBERS_SECONDS, GONE_SECONDS = 1.0, 4.0
BACKOFF_BASE, BACKOFF_CAP = 1.0, 16.0
LOCK = 0x72656C61  # "rela": the first half of each shard's lock
TOO_LARGE = 1_000_000  # bytes: what Kafka takes at most unless told otherwise

#: The envelope is made by PostgreSQL: no JSON passes through Python on the way out.
_NEXT = """
    SELECT event.id, event.aggregate_id, event.event_type, event.retry_count, json_build_object(
        'eventId', event.id,
        'timestamp', to_char(event.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'eventType', event.event_type, 'version', event.version, 'source', %(source)s::text,
        'data', event.payload,
        'metadata', event.metadata || jsonb_build_object('sequence', event.sequence))::text
    FROM outbox_events AS event
    WHERE published_at IS NULL AND dead_lettered_at IS NULL
      AND shard = ANY(%(shards)s::int[]) AND aggregate_id <> ALL(%(blocked)s::uuid[])
    ORDER BY position LIMIT %(limit)s
"""
#: Aggregates with an event that waits for its retry, or for a person.
_BLOCKED = """
    SELECT DISTINCT aggregate_id FROM outbox_events
    WHERE published_at IS NULL AND discarded_at IS NULL
      AND (dead_lettered_at IS NOT NULL OR retry_count > 0)
      AND (dead_lettered_at IS NOT NULL OR next_attempt_at > statement_timestamp())
      AND shard = ANY(%s)
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """A row on its way out."""

    id: uuid.UUID
    aggregate_id: uuid.UUID
    topic: str
    retry_count: int
    envelope: bytes

    @property
    def message(self) -> Message:
        """As the broker gets it."""
        return Message(self.topic, str(self.aggregate_id), self.envelope)


class Relay:
    """One relay process; `step` does one round."""

    def __init__(self, *, using: str = "direct", transport: Publisher | None = None) -> None:
        self.using = using
        self.name = f"relay:{socket.gethostname()[:20]}:{os.getpid()}:{id(self) % 9973}"
        self.shards: set[int] = set()
        self.published = 0
        self._transport = transport or publisher()
        self._members_at = 0.0
        self._away = 0

    def step(self, *, batch: int = BATCH) -> int:
        """This function will publish what is next, and return how many events left.

        Raises `BrokerAway`, after which nothing but a repetition has happened.
        """
        self._keep_shards()
        if not self.shards:
            return 0
        events = self._next(batch)
        sent: list[uuid.UUID] = []
        refused: list[tuple[Event, str]] = []
        try:
            for wave in _waves(events):
                stuck = {bad.aggregate_id for bad, _ in refused}
                for one in (wave := [one for one in wave if one.aggregate_id not in stuck]):
                    if len(one.envelope) > TOO_LARGE:
                        refused.append((one, f"it has {len(one.envelope):,} bytes; {TOO_LARGE:,} may go out"))
                fit = [one for one in wave if len(one.envelope) <= TOO_LARGE]
                answers = self._transport.publish([one.message for one in fit]) if fit else []
                for one, answer in zip(fit, answers, strict=True):
                    if isinstance(answer, Refused):
                        refused.append((one, answer.reason))
                    else:
                        sent.append(one.id)
        finally:
            self._settle(sent, refused)
        self.published += len(sent)
        return len(sent) + len(refused)

    def close(self) -> None:
        """This function will free the shards at once, for the others."""
        with contextlib.suppress(Exception):
            self._transport.close()
        with connections[self.using].cursor() as cursor:
            for shard in self.shards:
                cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [LOCK, shard])
            cursor.execute("DELETE FROM heartbeats WHERE name = %s", [self.name])
        self.shards = set()

    # --- shards ---
    def _keep_shards(self) -> None:
        """Beat, count who else does, and own a fair share: a lock that is free is nobody's."""
        if time.monotonic() - self._members_at < MEMBERS_SECONDS:
            return
        self._members_at = time.monotonic()
        with connections[self.using].cursor() as cursor:
            cursor.execute(
                """
                INSERT INTO heartbeats AS old (name, beat_at, since)
                VALUES (%s, statement_timestamp(), statement_timestamp())
                ON CONFLICT (name) DO UPDATE SET beat_at = excluded.beat_at
                """,
                [self.name],
            )
            cursor.execute(
                "SELECT count(*) FROM heartbeats WHERE name LIKE 'relay:%%'"
                " AND beat_at > statement_timestamp() - %s * interval '1 second'",
                [GONE_SECONDS],
            )
            fair = -(-SHARDS // max(1, cursor.fetchone()[0]))
            # The locks are the session's: after a lost connection none is ours any more.
            cursor.execute(
                "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objsubid = 2"
                " AND pid = pg_backend_pid()",
                [LOCK],
            )
            self.shards = {shard for (shard,) in cursor.fetchall()}
            for shard in sorted(self.shards)[fair:]:
                cursor.execute("SELECT pg_advisory_unlock(%s, %s)", [LOCK, shard])
                self.shards.discard(shard)
            for shard in random.sample(range(SHARDS), SHARDS):
                if len(self.shards) >= fair:
                    break
                if shard not in self.shards:
                    cursor.execute("SELECT pg_try_advisory_lock(%s, %s)", [LOCK, shard])
                    if cursor.fetchone()[0]:
                        self.shards.add(shard)

    # --- rows ---
    def _next(self, batch: int) -> list[Event]:
        shards = sorted(self.shards)
        with connections[self.using].cursor() as cursor:
            cursor.execute(_BLOCKED, [shards])
            blocked = [id for (id,) in cursor.fetchall()]
            wanted: dict[str, Any] = {
                "source": settings.EVENT_SOURCE,
                "shards": shards,
                "blocked": blocked,
                "limit": batch,
            }
            cursor.execute(_NEXT, wanted)
            return [
                Event(id, owner, topic, retries, envelope.encode())
                for id, owner, topic, retries, envelope in cursor.fetchall()
            ]

    def _settle(self, sent: Sequence[uuid.UUID], refused: Sequence[tuple[Event, str]]) -> None:
        with connections[self.using].cursor() as cursor:
            if sent:
                cursor.execute(
                    "UPDATE outbox_events SET published_at = statement_timestamp(), last_error = ''"
                    " WHERE id = ANY(%s) AND published_at IS NULL",
                    [sorted(sent)],
                )
            for event, reason in refused:
                dead = event.retry_count >= retries_of(event.topic)
                wait = ceiling(retry=event.retry_count + 1, base=BACKOFF_BASE, cap=BACKOFF_CAP)
                cursor.execute(
                    """
                    UPDATE outbox_events SET last_error = %s,
                        retry_count = retry_count + CASE WHEN %s THEN 0 ELSE 1 END,
                        dead_lettered_at = CASE WHEN %s THEN statement_timestamp() END,
                        next_attempt_at = statement_timestamp() + %s * interval '1 second'
                    WHERE id = %s
                    """,
                    [reason[:1000], dead, dead, wait * (0.5 + random.random() / 2), event.id],  # noqa: S311
                )
                write = log.error if dead else log.warning
                write("event refused", event_id=str(event.id), topic=event.topic, error=reason, dead=dead)


def retries_of(topic: str) -> int:
    """This function will say how often an event is tried again after its first try."""
    return settings.EVENT_MAX_RETRIES_FOR.get(topic, settings.EVENT_MAX_RETRIES)


def _waves(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Events in their order, at most one for each aggregate in a wave."""
    rest = list(events)
    while rest:
        wave: dict[uuid.UUID, Event] = {}
        later = []
        for event in rest:
            if event.aggregate_id in wave:
                later.append(event)
            else:
                wave[event.aggregate_id] = event
        yield list(wave.values())
        rest = later


def run(*, stopped: threading.Event, once: bool = False, make: Callable[[], Relay] = Relay) -> None:
    """This function will relay until `stopped`: at once when woken, else every half second.

    A broker that is away, or a database, is tried again after 1, 2, 4 … 16 seconds.
    """
    relay, ear, failures = make(), _Ear(), 0
    try:
        while not stopped.is_set():
            try:
                left = relay.step()
                failures = 0
            except BrokerAway as error:
                failures += 1
                wait = ceiling(retry=failures, base=BACKOFF_BASE, cap=BACKOFF_CAP)
                log.warning("broker away, events wait", error=str(error), seconds=wait)
                stopped.wait(wait * (0.5 + random.random() / 2))  # noqa: S311
                continue
            if once and not left:
                return
            if left < BATCH:
                stopped.wait(DEBOUNCE_SECONDS)
                ear.listen(seconds=POLL_SECONDS, stopped=stopped)
    finally:
        relay.close()
        ear.close()


class _Ear:
    """Hears wake-ups through Redis; without it, it only waits."""

    def __init__(self) -> None:
        self._pubsub: redis.client.PubSub | None = None

    def listen(self, *, seconds: float, stopped: threading.Event) -> None:
        """This function will return when woken, or after `seconds`."""
        try:
            if self._pubsub is None:
                client = redis.Redis.from_url(settings.REDIS_URL, socket_connect_timeout=1, socket_timeout=2)
                self._pubsub = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
                self._pubsub.subscribe(CHANNEL)
            deadline = time.monotonic() + seconds
            while (left := deadline - time.monotonic()) > 0 and not stopped.is_set():
                if self._pubsub.get_message(timeout=left):
                    return
        except (redis.RedisError, OSError):
            self.close()
            stopped.wait(seconds)

    def close(self) -> None:
        """This function will hang up."""
        if self._pubsub is not None:
            with contextlib.suppress(redis.RedisError, OSError):
                self._pubsub.close()
            self._pubsub = None
