"""The loop of one consumer process: receive, process, acknowledge, and keep events that must be tried again.

Each event has its own transaction, and is acknowledged only after the commit, so a kill repeats the last few
events. After a temporary error, the later events of the same topic and key wait behind the failed one, which
is tried again after growing waits and becomes a dead letter after six tries. While the broker or the database
is away, everything waits and no try is used up.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Mapping

import structlog
from django.db import DatabaseError, InterfaceError, connection

from events.consuming.handlers import Handler
from events.consuming.inbox import (
    InboundMessage,
    Processing,
    dead_letter,
    explain,
    fail_replay,
    open_message,
    process,
    replay_next,
)
from events.counters import RECEIVED
from events.pause_watch import PauseWatch
from events.transports import BrokerAway, BrokerConsumer, Received
from runtime.database.away import is_away, is_lock_timeout
from runtime.models import Pause
from runtime.process.loop import pause_after, run_until_stopped
from runtime.telemetry import context

log = structlog.get_logger(__name__)

GROUP = "orderpost"
WAIT_SECONDS = 1.0
REPLAY_SECONDS = 1.0  # between two queries for dead letters to replay
ACKNOWLEDGE_SECONDS = 0.1  # in a round of many: Kafka stores an offset as slowly as an event
TRIES = 6
MOST_REPLAYS = 100  # in one round, so that live events do not wait behind thousands of replays
COUNTED_AS: dict[Processing, str] = {"done": "handled", "repeat": "repeated", "dead": "refused", "own": "own"}

Key = tuple[str, str]  # topic and key, whose events are processed in order


class EventConsumer:
    """Consume through a connection that `connect` makes. `step` does one round."""

    def __init__(
        self,
        *,
        connect: Callable[[], BrokerConsumer],
        name: str,
        handlers: Mapping[str, Handler],
        published_topics: Collection[str] = (),
    ) -> None:
        self._connect, self._name, self._handlers = connect, name, handlers
        self._own_topics = published_topics
        self._consumer: BrokerConsumer | None = None
        self._pause = PauseWatch(Pause.Part.CONSUMERS)
        self._waiting: dict[Key, deque[InboundMessage]] = {}  # the first event of each will be tried again
        self._again: dict[Key, tuple[float, int]] = {}  # when to try it (monotonic), and how often it failed
        self._settled: list[Received] = []  # not yet acknowledged
        self._acknowledged_at = 0.0  # monotonic
        self._replays: dict[uuid.UUID, tuple[float, int]] = {}  # like _again, for replays of dead letters
        self._replayed_at = 0.0
        self.counts: dict[Processing, int] = {"done": 0, "repeat": 0, "dead": 0}

    def step(self, *, seconds: float = WAIT_SECONDS) -> None:
        """Do one round of about `seconds`. Raise `BrokerAway`, and the database's errors if it is away.

        While consumers are paused, leave the broker and wait. Messages without an acknowledgement come again.
        """
        if self._pause.is_paused():
            if self._consumer is not None:
                self.disconnect()
            time.sleep(min(seconds, WAIT_SECONDS))
            return
        if self._consumer is None:
            self._consumer = self._connect()
        more_replays = self._replay()
        for key in [key for key, (at, _) in self._again.items() if at <= time.monotonic()]:
            self._retry(key)
        soon = min((at - time.monotonic() for at, _ in self._again.values()), default=seconds)
        if more_replays:
            soon = 0.0
        for received in self._consumer.receive(seconds=max(0.01, min(seconds, soon))):
            message = open_message(received)
            if (key := _key_of(message)) in self._waiting:  # keep the order behind the event that failed
                self._waiting[key].append(message)
            else:
                self._try(message)
        self._acknowledge()

    def disconnect(self) -> None:
        """Leave the broker and the database. Events without an acknowledgement come again."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None
        self._waiting.clear()
        self._again.clear()
        self._settled.clear()
        connection.close()

    def _retry(self, key: Key) -> None:
        queue = self._waiting[key]
        while queue:
            if not self._try(queue[0]):
                return
            queue.popleft()
        del self._waiting[key]
        self._again.pop(key, None)

    def _try(self, message: InboundMessage) -> bool:
        """Process an event. Return whether it is settled."""
        key, received = _key_of(message), message.received
        try:
            result = process(
                message, consumer=self._name, handlers=self._handlers, published_topics=self._own_topics
            )
        except Exception as error:
            if is_away(error):
                raise
            failures = self._again.get(key, (0.0, 0))[1] + 1
            envelope = message.any_envelope
            if failures < TRIES:
                RECEIVED.labels(received.topic, "retried").inc()
                wait = pause_after(failures)
                log.warning(
                    "event will be tried again",
                    **envelope.ids,
                    topic=received.topic,
                    error=repr(error),
                    seconds=round(wait, 1),
                )
                self._again[key] = (time.monotonic() + wait, failures)
                self._waiting.setdefault(key, deque([message]))
                return False
            with context.working_for(envelope.context):
                log.exception("event given up", **envelope.ids, topic=received.topic)
                result = dead_letter(message=message, consumer=self._name, reason=explain(error))
        self.counts[result] = self.counts.get(result, 0) + 1
        RECEIVED.labels(received.topic, COUNTED_AS[result]).inc()
        self._again.pop(key, None)
        self._settled.append(received)
        if time.monotonic() - self._acknowledged_at >= ACKNOWLEDGE_SECONDS:
            self._acknowledge()
        return True

    def _acknowledge(self) -> None:
        assert self._consumer is not None
        self._acknowledged_at = time.monotonic()
        if self._settled:
            self._consumer.done(self._settled)
            self._settled = []

    def _replay(self) -> bool:
        """Process dead letters whose replay was requested. Return whether the next round must continue."""
        now = time.monotonic()
        if now - self._replayed_at < REPLAY_SECONDS:
            return False
        for _ in range(MOST_REPLAYS):
            skip = [letter for letter, (at, _) in self._replays.items() if at > now]
            done = replay_next(consumer=self._name, handlers=self._handlers, skip=skip)
            if done is None:
                self._replayed_at = now
                return False
            letter, error = done
            if error is not None and is_away(error):
                raise error
            failures = self._replays.pop(letter.id, (0.0, 0))[1] + 1
            if error is None:
                continue
            if failures < TRIES:
                self._replays[letter.id] = (time.monotonic() + pause_after(failures), failures)
            else:
                fail_replay(letter=letter, reason=explain(error))
        return True


def _key_of(message: InboundMessage) -> Key:
    return message.received.topic, message.received.key


def run(
    *,
    connect: Callable[[], BrokerConsumer],
    name: str,
    handlers: Mapping[str, Handler],
    stopped: threading.Event,
    published_topics: Collection[str] = (),
) -> None:
    """Consume until `stopped`. Try again while the broker or the database is away."""
    consumer = EventConsumer(connect=connect, name=name, handlers=handlers, published_topics=published_topics)
    try:
        run_until_stopped(
            step=consumer.step,
            stopped=stopped,
            errors=(BrokerAway, DatabaseError, InterfaceError),
            reconnect=consumer.disconnect,
            describe=_describe,
        )
    finally:
        consumer.disconnect()


def _describe(error: Exception) -> str:
    if is_lock_timeout(error):
        return "row is busy, consumer waits"
    away = "broker" if isinstance(error, BrokerAway) else "database"
    return f"{away} away, consumer waits"
