"""Publish `outbox_events` to the broker: at least once, and in order for each aggregate within a topic.

Each event belongs to a shard (a hash of its aggregate). One relay owns a shard at a time (see `shards`) and
needs neither claims nor leases. It sends a batch in waves with at most one event of each aggregate, and
settles each answer of the broker separately:

taken        The event is published.
refused      The event itself is wrong. The relay tries it again up to MAX_RETRIES times, then makes it
             a dead letter. Later events of its aggregate wait until it is published or discarded. All others
             continue.
no topic     The topic is missing, forbidden or of the wrong type. Its events wait and use up no retry. Those
             of other topics continue.
away         The broker is away. No retry is used up, and this relay gives its shards to the others until it
             reaches the broker again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterator, Sequence

import structlog
from django.db import DatabaseError, InterfaceError

from events.counters import PUBLISHED
from events.models import DomainEvent
from events.models.envelope_sql import OutgoingEvent
from events.models.events import DomainEventQuerySet
from events.pause_watch import PauseWatch
from events.publishing.floor import Floor
from events.publishing.messages import publish_events
from events.publishing.notify import Listener
from events.publishing.shards import Shards
from events.transports import BrokerAway, BrokerPublisher, MessageRefused, TopicUnavailable, publisher
from events.transports.base import LARGEST
from runtime.database.clock import read_database_time
from runtime.models import Pause
from runtime.process.loop import pause_after, run_until_stopped
from runtime.texts import make_storable

log = structlog.get_logger(__name__)
#: A logger of its own. config.sentry makes no breadcrumbs of it, which would cost more than the lines.
published_log = structlog.get_logger("events.published")

BATCH = 500
READ_AHEAD = 4  # batches that one query reads
POLL_SECONDS = 0.5
MAX_RETRIES = 4  # of a refused event: five attempts in all
# A query costs as much as publishing many events. While events stream in, the relay waits longer between two
# queries.
STREAM = 10  # a query with so many events or more counts as a stream
DEBOUNCE_SECONDS = 0.03  # after fewer than STREAM events
STREAM_SECONDS = 0.15  # after STREAM events or more
CLOCK_SECONDS = 3600.0


@dataclasses.dataclass(slots=True)
class WaveAnswers:
    """The broker's answers to one batch. An event that is not in `published` stays unpublished."""

    published: list[OutgoingEvent] = dataclasses.field(default_factory=list)
    refused: list[tuple[OutgoingEvent, str]] = dataclasses.field(default_factory=list)
    #: The last reason and the waiting events of each topic.
    unavailable: dict[str, tuple[str, list[OutgoingEvent]]] = dataclasses.field(default_factory=dict)

    def sendable(self, wave: Sequence[OutgoingEvent]) -> list[OutgoingEvent]:
        """Return the events that no earlier one of the batch holds back."""
        stuck = {event.aggregate_id for event, _ in self.refused}
        return [
            event for event in wave if event.aggregate_id not in stuck and event.topic not in self.unavailable
        ]


@dataclasses.dataclass(frozen=True, slots=True)
class RetryHold:
    """A topic that is not tried before `until` (monotonic)."""

    until: float
    failures: int


class Relay:
    """One relay process. `step` publishes one batch."""

    def __init__(self, *, using: str = "direct", transport: BrokerPublisher | None = None) -> None:
        self.using = using
        self.shards = Shards(using=using)
        self._pause = PauseWatch(Pause.Part.RELAY, using=using)
        self._transport = transport or publisher()
        self._reachable = False  # until the broker has answered
        self._held: dict[str, RetryHold] = {}  # by topic
        self._floor = Floor(using=using)
        #: Events that were read ahead: a query costs as much as publishing some hundred events.
        self._ahead: deque[OutgoingEvent] = deque()
        self._clock: tuple[float, dt.datetime] | None = None

    def step(self, *, batch: int = BATCH) -> int:
        """Publish the next batch. Return how many events were published or refused.

        Raise `BrokerAway` and the database's errors, after settling the broker's earlier answers.
        """
        if not self._reachable:
            self._transport.check()  # before this relay takes shards from relays that reach the broker
            self._reachable = True
        owned = self.shards.owned.copy()
        self.shards.keep()
        if owned != self.shards.owned:
            self._start_over()
        if not self.shards.owned:
            return 0
        if self._pause.is_paused():
            self._start_over()
            return 0
        if not self._ahead:
            self._ahead.extend(self._next(batch * READ_AHEAD))
        events = [self._ahead.popleft() for _ in range(min(batch, len(self._ahead)))]
        answers = WaveAnswers()
        try:
            for wave in _waves(events):
                self._publish(wave, answers)
        finally:
            if len(answers.published) < len(events):
                self._start_over()  # later events that were read ahead may have to wait
            self._settle(answers)
        if events and len(answers.published) == len(events):
            self._floor.published(last=events[-1].position)
        return len(answers.published) + len(answers.refused)

    def _start_over(self) -> None:
        """Forget events that were read ahead, and query everything again."""
        self._ahead.clear()
        self._floor.reset()

    def hand_over(self) -> None:
        """Give the shards to the other relays, and take none before the broker answers again."""
        self._reachable = False
        self._start_over()
        self.shards.release()

    def close(self) -> None:
        """Give the shards back and disconnect from the broker."""
        with contextlib.suppress(Exception):
            self._transport.close()
        self.shards.release()

    def _events(self) -> DomainEventQuerySet:
        return DomainEvent.objects.using(self.using)

    def _now(self) -> dt.datetime:
        """Return the database's time, up to an hour old."""
        if self._clock is None or time.monotonic() - self._clock[0] > CLOCK_SECONDS:
            self._clock = time.monotonic(), read_database_time(using=self.using)
        return self._clock[1]

    def _next(self, limit: int) -> list[OutgoingEvent]:
        """Read the next events from the floor, or from the start if some are held back and may become due."""
        events, shards, now = self._events(), self.shards.owned, self._now()
        blocked = events.blocking(shards=shards, now=now)
        held = [topic for topic, hold in self._held.items() if hold.until > time.monotonic()]
        if blocked or self._held:
            self._floor.reset()
        self._floor.tick()
        since = self._floor.position
        rows = events.due(shards=shards, now=now, since=since, without=blocked, held=held, limit=limit)
        self._floor.note_first(first=rows[0].position if rows else None)
        return rows

    def _publish(self, wave: Sequence[OutgoingEvent], answers: WaveAnswers) -> None:
        fit = []
        for event in answers.sendable(wave):
            if len(event.envelope) > LARGEST:
                reason = f"it has {len(event.envelope):,} bytes; {LARGEST:,} may go out"
                answers.refused.append((event, reason))
            else:
                fit.append(event)
        if not fit:
            return
        away: BrokerAway | None = None
        for event, answer in zip(fit, publish_events(self._transport, fit), strict=True):
            if answer is None:
                answers.published.append(event)
            elif isinstance(answer, MessageRefused):
                answers.refused.append((event, answer.reason))
            elif isinstance(answer, TopicUnavailable):
                _, waiting = answers.unavailable.get(event.topic, ("", []))
                answers.unavailable[event.topic] = (answer.reason, [*waiting, event])
            else:
                away = answer
        if away is not None:
            raise away

    def _settle(self, answers: WaveAnswers) -> None:
        if answers.published:
            self._events().mark_published(ids=[event.id for event in answers.published])
            for topic, count in Counter(event.topic for event in answers.published).items():
                PUBLISHED.labels(topic).inc(count)
            for event in answers.published:
                published_log.info("event published", **event.ids)
        for event, reason in answers.refused:
            dead = event.retry_count >= MAX_RETRIES
            wait = None if dead else dt.timedelta(seconds=pause_after(event.retry_count + 1))
            self._events().refuse(event_id=event.id, reason=make_storable(reason)[:1000], wait=wait)
            write = log.error if dead else log.warning
            write("event refused", **event.ids, topic=event.topic, error=reason, dead=dead)
        taken = {event.topic for event in answers.published}
        for topic in taken - set(answers.unavailable):
            self._held.pop(topic, None)
        for topic, (reason, waiting) in answers.unavailable.items():
            self._hold(topic, reason, len(waiting), partly=topic in taken)
            self._events().explain_wait(
                ids=[event.id for event in waiting], reason=make_storable(reason)[:1000]
            )

    def _hold(self, topic: str, reason: str, count: int, *, partly: bool) -> None:
        """Wait before trying a topic again. The wait grows, unless the broker took some of its events."""
        failures = self._held[topic].failures + 1 if topic in self._held else 1
        seconds = pause_after(1 if partly else failures)
        self._held[topic] = RetryHold(time.monotonic() + seconds, failures)
        write = log.error if failures == 1 else log.warning
        write(
            "topic unavailable, its events wait",
            topic=topic,
            event_type=topic,
            count=count,
            error=reason,
            seconds=round(seconds, 1),
        )


def run(*, stopped: threading.Event, once: bool = False) -> None:
    """Publish until `stopped`, at once after a wake-up and otherwise every half second.

    If `once`, stop when no event is left. If the broker or the database is away, give the shards to the other
    relays, and try again after 1, 2, 4 … 16 seconds.
    """
    relay, listener = Relay(), Listener()

    def step() -> None:
        left = relay.step()
        if once and not left:
            stopped.set()
        elif left < BATCH and not once:
            stopped.wait(DEBOUNCE_SECONDS if left < STREAM else STREAM_SECONDS)
            listener.wait(seconds=POLL_SECONDS, stopped=stopped)

    try:
        run_until_stopped(
            step=step,
            stopped=stopped,
            errors=(BrokerAway, DatabaseError, InterfaceError),
            reconnect=relay.hand_over,
            describe=_describe,
        )
    finally:
        relay.close()
        listener.close()


def _describe(error: Exception) -> str:
    away = "broker" if isinstance(error, BrokerAway) else "database"
    return f"{away} away, events wait"


def _waves(events: Sequence[OutgoingEvent]) -> Iterator[list[OutgoingEvent]]:
    """Split events in their order into waves with at most one event of each aggregate."""
    rest = list(events)
    while rest:
        wave: dict[uuid.UUID, OutgoingEvent] = {}
        later = []
        for event in rest:
            if event.aggregate_id in wave:
                later.append(event)
            else:
                wave[event.aggregate_id] = event
        yield list(wave.values())
        rest = later
