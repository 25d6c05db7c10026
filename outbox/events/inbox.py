"""Takes events of other services in: each has its effect once, whatever is repeated, late or broken.

The handler's changes and the row in `processed_events` are one transaction, and the broker is told only
after it: killed anywhere, the event comes again and is a repeat that changes nothing. A temporary error
holds back the later events of the same key, with growing waits; a permanent one is kept in `dead_events` for
a person and published to `<topic>.dlt`. Called by an app's `consume_events`, which brings the handlers.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import json
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from django.db import DatabaseError, InterfaceError, OperationalError, connection, transaction
from django.db.models.functions import Now

from outbox.core import context
from outbox.core.backoff import ceiling
from outbox.events import transports
from outbox.events.publish import publish_event
from outbox.events.transports import BrokerAway, Consumer, Message, Received
from outbox.models import DeadEvent, ProcessedEvent

log = structlog.get_logger(__name__)

GROUP = "orderpost"
WAIT_SECONDS = 1.0
BACKOFF_BASE, BACKOFF_CAP = 1.0, 16.0
TRIES = 6
LARGEST = 1_000_000  # bytes
_NAMESPACE = uuid.UUID("6f3c0c9e-6f0b-5a52-9a59-0d4e3f1b7a11")  # of ids for events that bring none


class Rejected(Exception):
    """A handler's word: this event can never be taken, and this is why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Envelope:
    """An event as seed 2 has it; `data` is the topic's own."""

    id: uuid.UUID
    type: str
    version: int
    source: str
    data: Mapping[str, Any]
    metadata: Mapping[str, Any]


#: Changes what the event says, in the transaction it is called in. Raises `Rejected`.
Handler = Callable[[Envelope], None]


def read(*, topic: str, value: bytes) -> Envelope:
    """This function will read an envelope; raises `Rejected` for whatever is not one of this topic."""
    if len(value) > LARGEST:
        raise Rejected(f"it has {len(value):,} bytes; {LARGEST:,} are taken")
    try:
        document = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise Rejected(f"it is no JSON: {error}") from error
    if not isinstance(document, dict):
        raise Rejected("it is no JSON object")
    metadata = document.get("metadata")
    envelope = Envelope(
        id=_uuid(document.get("eventId")),
        type=_text(document, "eventType"),
        version=document.get("version", 1),
        source=_text(document, "source"),
        data=document.get("data") or {},
        metadata=metadata if isinstance(metadata, dict) else {},
    )
    if envelope.type != topic:
        raise Rejected(f"its eventType is {envelope.type!r}, not the topic's")
    if type(envelope.version) is not int or not topic.endswith(f".v{envelope.version}"):
        raise Rejected(f"its version is {envelope.version!r}, which this topic's name does not have")
    if not isinstance(envelope.data, dict):
        raise Rejected("its data are no JSON object")
    return envelope


def take(*, received: Received, consumer: str, handlers: Mapping[str, Handler]) -> str:
    """This function will give an event its effect, once, and say what it was: done, repeat or dead.

    One transaction. Raises the database's errors, and any other that a handler raises and that is not
    `Rejected`: the event is then to be tried again.
    """
    try:
        envelope = read(topic=received.topic, value=received.value)
    except Rejected as reason:
        return _bury(received, consumer, _id_of(received), None, str(reason))
    with context.working_for(_context_of(envelope)):
        try:
            with transaction.atomic(durable=True):
                if not _first_time(envelope, received.topic, consumer):
                    log.info("event repeated", event_id=str(envelope.id), topic=received.topic)
                    return "repeat"
                handlers[received.topic](envelope)
        except Rejected as reason:
            return _bury(received, consumer, envelope.id, envelope, str(reason))
        log.info("event taken", event_id=str(envelope.id), topic=received.topic)
    return "done"


def replay(*, dead: DeadEvent) -> None:
    """This function will put a dead event back on its topic, to be taken as if for the first time.

    Raises `BrokerAway`; then it still counts as dead.
    """
    ProcessedEvent.objects.filter(event_id=dead.event_id, consumer=dead.consumer).delete()
    publisher = transports.publisher()
    try:
        (refused,) = publisher.publish([Message(dead.topic, dead.key, dead.envelope.encode())])
        if refused:
            raise BrokerAway(refused.reason)
    finally:
        publisher.close()
    DeadEvent.objects.filter(id=dead.id).update(replayed_at=Now())


class Inbox:
    """One consumer process: receives, takes, acknowledges, and keeps what has to be tried again."""

    def __init__(self, *, consumer: Consumer, name: str, handlers: Mapping[str, Handler]) -> None:
        self._consumer, self._name, self._handlers = consumer, name, handlers
        self._waiting: dict[str, deque[Received]] = {}  # by key: the first is to be tried again
        self._again: dict[str, tuple[float, int]] = {}  # by key: when, and how often it failed
        self.counts = {"done": 0, "repeat": 0, "dead": 0}

    def step(self, *, seconds: float = WAIT_SECONDS) -> None:
        """This function will do one round. Raises `BrokerAway`, and the database's errors when it is away."""
        for key in [key for key, (at, _) in self._again.items() if at <= time.monotonic()]:
            self._work_off(key)
        soon = min((at - time.monotonic() for at, _ in self._again.values()), default=seconds)
        for received in self._consumer.receive(seconds=max(0.01, min(seconds, soon))):
            if received.key in self._waiting:  # in order behind the one that failed
                self._waiting[received.key].append(received)
            else:
                self._try(received)

    def _work_off(self, key: str) -> None:
        queue = self._waiting[key]
        while queue:
            if not self._try(queue[0]):
                return
            queue.popleft()
        del self._waiting[key]
        self._again.pop(key, None)

    def _try(self, received: Received) -> bool:
        failures = self._again.get(received.key, (0.0, 0))[1]
        try:
            result = take(received=received, consumer=self._name, handlers=self._handlers)
        except (OperationalError, InterfaceError):
            raise  # the database: nothing else would do better
        except Exception as error:  # a handler's own trouble: later, and not for ever
            failures += 1
            if failures < TRIES:
                wait = ceiling(retry=failures, base=BACKOFF_BASE, cap=BACKOFF_CAP)
                log.warning(
                    "event will be tried again", topic=received.topic, error=repr(error), seconds=wait
                )
                self._again[received.key] = (time.monotonic() + wait * (0.5 + random.random() / 2), failures)  # noqa: S311
                self._waiting.setdefault(received.key, deque([received]))
                return False
            log.exception("event given up", topic=received.topic)
            result = _bury(received, self._name, _id_of(received), None, f"{type(error).__name__}: {error}")
        self.counts[result] += 1
        self._again.pop(received.key, None)
        self._consumer.done([received])
        return True


def run(
    *, make: Callable[[], Consumer], name: str, handlers: Mapping[str, Handler], stopped: threading.Event
) -> None:
    """This function will consume until `stopped`; a broker or database that is away is tried again."""
    failures = 0
    inbox: Inbox | None = None
    consumer: Consumer | None = None
    while not stopped.is_set():
        try:
            if inbox is None:
                consumer = make()
                inbox = Inbox(consumer=consumer, name=name, handlers=handlers)
            inbox.step()
            failures = 0
        except (BrokerAway, DatabaseError, InterfaceError) as error:
            failures += 1
            wait = ceiling(retry=failures, base=BACKOFF_BASE, cap=BACKOFF_CAP)
            log.warning("consumer waits", error=str(error), seconds=wait)
            connection.close()
            if consumer is not None:
                consumer.close()  # what was not acknowledged comes again
            inbox = consumer = None
            stopped.wait(wait * (0.5 + random.random() / 2))  # noqa: S311
    if consumer is not None:
        consumer.close()


def _first_time(envelope: Envelope, topic: str, consumer: str) -> bool:
    """Take the event's row; if it is there, count the repeat. Waits for whoever is at the same event."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO processed_events AS old (event_id, consumer, event_type, source, receive_count)
            VALUES (%s, %s, %s, %s, 1)
            ON CONFLICT (event_id, consumer) DO UPDATE SET receive_count = old.receive_count + 1
            RETURNING receive_count
            """,
            [envelope.id, consumer, topic[:100], envelope.source[:100]],
        )
        return bool(cursor.fetchone()[0] == 1)


def _bury(
    received: Received, consumer: str, event_id: uuid.UUID, envelope: Envelope | None, reason: str
) -> str:
    """Keep a dead event for a person and tell the dead-letter topic, once, in one transaction."""
    text = received.value[:LARGEST].decode("utf-8", "replace").replace("\x00", "")
    with transaction.atomic(durable=True):
        known = envelope or Envelope(event_id, received.topic, 1, "", {}, {})
        if not _first_time(known, received.topic, consumer):
            return "repeat"
        DeadEvent.objects.create(
            topic=received.topic[:255],
            key=received.key[:255].replace("\x00", ""),
            event_id=event_id,
            consumer=consumer,
            envelope=text,
            error=reason[:1000],
        )
        publish_event(
            aggregate_type="event",
            aggregate_id=event_id,
            event_type=f"{received.topic}.dlt",
            sequence=1,
            payload={
                "eventId": str(event_id),
                "originalEvent": _original(text),
                "errorMessage": reason[:1000],
                "failedAt": dt.datetime.now(dt.UTC).isoformat(),
                "consumerService": consumer,
            },
        )
    log.error("event is dead", event_id=str(event_id), topic=received.topic, reason=reason)
    return "dead"


def _original(text: str) -> Any:
    """The envelope as JSON if it is, cut if it is long: a dead letter must not be too large itself."""
    if len(text) > LARGEST // 4:
        return text[:1000]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _id_of(received: Received) -> uuid.UUID:
    """The event's id, or one that is the same each time these bytes come."""
    try:
        return uuid.UUID(json.loads(received.value)["eventId"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return uuid.uuid5(_NAMESPACE, hashlib.sha256(received.topic.encode() + received.value).hexdigest())


def _context_of(envelope: Envelope) -> context.Context:
    correlation = context.accept_correlation_id(_string(envelope.metadata.get("correlationId")))
    return context.Context(
        correlation or context.new_correlation_id(), idempotency_key=f"event:{envelope.id}"
    )


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _uuid(value: object) -> uuid.UUID:
    try:
        return uuid.UUID(value)  # type: ignore[arg-type]
    except (ValueError, TypeError, AttributeError) as error:
        raise Rejected("its eventId is no UUID") from error


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not value:
        raise Rejected(f"its {name} is missing")
    return value
