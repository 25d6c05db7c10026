"""Process each event of another service once, although it may come twice, late or broken.

The transaction that applies an event also writes the event's row in `processed_events`. When the event comes
again, its row is there and nothing changes: the event's id works like the Idempotency-Key of a request. An
event that can never be processed (`Rejected`), or that failed six times, becomes a dead letter with its
reason. An operator replays or discards it, and it is published to `<topic>.dlt`.

Nearly every event comes for the first time. So its handler is called first, and its row is saved together
with what the handler saves. If anything fails then, the event may be a repeat. Each way locks the order
before the event's row, or only the latter. Otherwise two sessions with one event could wait for each other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import json
import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

import structlog
from django.conf import settings
from django.db import DataError, IntegrityError, InterfaceError, OperationalError, connection, transaction
from django.db.models.functions import Now
from opentelemetry.trace import Span, SpanKind, StatusCode

from events.consuming.envelope import (
    Envelope,
    Rejected,
    event_id_of,
    producer_of,
    read_envelope,
    read_json,
)
from events.consuming.handlers import Handler, subscription
from events.event_ids import event_ids
from events.models import InboundDeadLetter, ProcessedEvent
from events.models.inbox import EventKey, Receipt
from events.publishing.write import write_event
from events.transports import Received
from events.transports.base import LARGEST
from runtime.database.away import is_lock_timeout
from runtime.database.ids import id_time
from runtime.database.save import broken_constraint, save_together
from runtime.database.transactions import after_commit
from runtime.personal_data import hashes_in
from runtime.process import cached_rows
from runtime.telemetry import context, tracing
from runtime.texts import make_storable

log = structlog.get_logger(__name__)

#: `processed_events` expire by the database's clock, and an event has its producer's time. This is their
#: margin.
CLOCKS_APART = dt.timedelta(hours=1)

Processing = Literal["done", "repeat", "dead", "own"]


@dataclasses.dataclass(frozen=True, slots=True)
class InboundMessage:
    """A received message with its envelope, or with the reason why it has none."""

    received: Received
    envelope: Envelope | None
    fault: str = ""

    @property
    def any_envelope(self) -> Envelope:
        """The envelope. If it cannot be read, one with only its id, its topic and perhaps its producer."""
        return self.envelope or _unreadable(self.received)


def open_message(received: Received) -> InboundMessage:
    """Read the envelope of a received message."""
    try:
        return InboundMessage(received, read_envelope(topic=received.topic, value=received.value))
    except Rejected as reason:
        return InboundMessage(received, None, str(reason))


def process(
    message: InboundMessage,
    *,
    consumer: str,
    handlers: Mapping[str, Handler],
    published_topics: Collection[str] = (),
) -> Processing:
    """Apply an event once, in a transaction of its own.

    Skip our own events, which the broker also delivers on `published_topics`. Make the event a dead letter
    after `Rejected` or `DataError`. Raise any other error of the database or a handler: the event must be
    tried again.
    """
    received, envelope = message.received, message.envelope
    if envelope is None:
        return dead_letter(message=message, consumer=consumer, reason=message.fault)
    if is_own(message, published_topics):
        return "own"
    with _working_on(envelope, consumer) as span:
        try:
            repeated = _apply_once(envelope, consumer, handlers, received.written_at)
        except (Rejected, DataError) as error:
            reason = explain(error)
            span.set_status(StatusCode.ERROR, reason)
            return dead_letter(message=message, consumer=consumer, reason=reason)
    return "done" if repeated is None else "repeat"


def process_or_reject(
    envelope: Envelope, *, consumer: str, handlers: Mapping[str, Handler]
) -> Literal["done", "repeat"]:
    """Apply an event once, as `process` does. Its topic must have a handler.

    Raise `Rejected` instead of storing a dead letter: the sender can correct the event and send it again.
    """
    with _working_on(envelope, consumer):
        try:
            repeated = _apply_once(envelope, consumer, handlers)
        except DataError as error:
            raise Rejected(explain(error)) from error
    if repeated is None:
        return "done"
    letters = InboundDeadLetter.objects.filter(event_id=envelope.id, consumer=consumer, replayed_at=None)
    # A letter that was erased or is not exact does not tell its source. It had no effect, so its event is not
    # a repeat.
    if any(_producer_of(letter) in (repeated.source, "") for letter in letters):
        raise Rejected("a broker delivered it before, and it became a dead letter: an operator decides")
    return "repeat"


def _apply_once(
    envelope: Envelope,
    consumer: str,
    handlers: Mapping[str, Handler],
    written_at: dt.datetime | None = None,
) -> Receipt | None:
    """Call the event's handler and record the event, in one transaction.

    A repeat is only counted: return what the inbox knew of it. Raise what the handler raises.
    """
    cached_rows.load()  # the handler must not wait for other reads while it holds a lock
    repeated = _apply_or_count(envelope, consumer, handlers, written_at)
    log.info("event taken" if repeated is None else "event repeated", **envelope.ids, topic=envelope.type)
    return repeated


def _apply_or_count(
    envelope: Envelope, consumer: str, handlers: Mapping[str, Handler], written_at: dt.datetime | None
) -> Receipt | None:
    recorded_for = consumer
    for tries_left in (2, 1, 0):
        try:
            _apply(envelope, recorded_for, handlers, written_at)
            return None
        except Exception as error:
            if isinstance(error, OperationalError | InterfaceError) and not is_lock_timeout(error):
                raise  # the database is away
            envelope.effects.forget()
            receipt = _count_repeat(envelope, consumer)
            if receipt.first_at is not None:
                return receipt
            _check_age(envelope, written_at, receipt.received_at)
            if _is_taken(error) and tries_left:
                # Another session has made the order since, or an event of another producer has this id.
                recorded_for = receipt.consumer
                continue
            if isinstance(error, Rejected):
                error.then()
            raise
    raise AssertionError


def _apply(
    envelope: Envelope, consumer: str, handlers: Mapping[str, Handler], written_at: dt.datetime | None
) -> None:
    times = _times(envelope, written_at)
    row = ProcessedEvent(
        event_id=envelope.id,
        consumer=consumer,
        event_type=envelope.type[:100],
        source=envelope.producer[:100],
    )
    with transaction.atomic(durable=True):
        handlers[envelope.type](envelope)
        # Of an older event, `_check_age` says why it is refused.
        save_together(
            row,
            check="%s::timestamptz >= statement_timestamp() - %s::interval" if times else "",
            values=[min(times), _remembered()] if times else (),
        )


def _count_repeat(envelope: Envelope, consumer: str) -> Receipt:
    """Count an event that was processed before. Record nothing if it was not."""
    with transaction.atomic(durable=True):
        receipt = _record(envelope, consumer)
        if receipt.first_at is None:
            transaction.set_rollback(True)
    return receipt


def _is_taken(error: Exception) -> bool:
    return isinstance(error, IntegrityError) and (broken_constraint(error) or "").endswith("_pkey")


def is_own(message: InboundMessage, published_topics: Collection[str]) -> bool:
    """Return whether this service published the event itself."""
    envelope = message.envelope
    return (
        envelope is not None
        and envelope.type in published_topics
        and envelope.producer == settings.EVENT_SOURCE
    )


def _producer_of(letter: InboundDeadLetter) -> str:
    """Return what the inbox recorded as the source of a letter's event, or an empty text if unknown."""
    return open_message(_received(letter)).any_envelope.producer[:100] if letter.is_exact else ""


def _received(letter: InboundDeadLetter) -> Received:
    return Received(letter.topic, letter.key, letter.envelope.encode(), None)


@contextlib.contextmanager
def _working_on(envelope: Envelope, consumer: str) -> Iterator[Span]:
    """Work within the event's context and trace."""
    work = envelope.context
    with (
        tracing.span(f"process {envelope.type}", kind=SpanKind.CONSUMER, parent=work.traceparent) as span,
        context.working_for(
            dataclasses.replace(work, traceparent=tracing.traceparent_of(span) or work.traceparent)
        ),
    ):
        span.set_attribute("messaging.destination.name", envelope.type)
        span.set_attribute("messaging.message.id", str(envelope.id))
        span.set_attribute("messaging.consumer.group.name", consumer)
        span.set_attribute("orderpost.correlation_id", work.correlation_id)
        yield span


def dead_letter(*, message: InboundMessage, consumer: str, reason: str) -> Literal["dead", "repeat"]:
    """Store an event as a dead letter and write its `.dlt` event, once, in one transaction."""
    received, envelope = message.received, message.any_envelope
    event_id = envelope.id
    text = make_storable(received.value[:LARGEST].decode("utf-8", "replace"))
    is_exact = text.encode() == received.value
    reason = make_storable(reason)[:1000]
    with transaction.atomic(durable=True):
        if _record(envelope, consumer).first_at is not None:
            return "repeat"
        InboundDeadLetter.objects.create(
            topic=received.topic[:255],
            key=make_storable(received.key[:255]),
            event_id=event_id,
            consumer=consumer,
            envelope=text,
            is_exact=is_exact,
            error=reason,
            order_id=subscription().order_of(envelope),
            address_hashes=hashes_in(text, received.key, reason),
        )
        write_event(
            aggregate_type="event",
            aggregate_id=event_id,
            event_type=f"{received.topic}.dlt",
            sequence=1,
            payload={
                "eventId": str(event_id),
                "originalEvent": _original(text, is_exact=is_exact),
                "errorMessage": reason,
                "failedAt": dt.datetime.now(dt.UTC).isoformat(),
                "consumerService": consumer,
            },
        )
    log.error("event dead-lettered", **envelope.ids, topic=received.topic, reason=reason)
    return "dead"


def replay_next(
    *, consumer: str, handlers: Mapping[str, Handler], skip: Collection[uuid.UUID] = ()
) -> tuple[InboundDeadLetter, Exception | None] | None:
    """Process the next dead letter whose replay was requested. Return None if none waits.

    The row's lock, and `replayed_at`, which the handler's transaction sets, keep it to once. A replayed event
    may be of any age. If it is rejected again, or no handler takes its topic any more, it is dead again with
    the new reason. Return the letter, and the error after which the caller must try it again. Raise only
    connection errors.
    """
    letters = InboundDeadLetter.objects.replay_requested().filter(consumer=consumer)
    with transaction.atomic(durable=True):
        letter = letters.exclude(id__in=skip).order_by("id").select_for_update(skip_locked=True).first()
        if letter is None:
            return None
        try:
            with transaction.atomic():
                envelope = _replay(letter, handlers)
        except (Rejected, DataError) as error:
            if isinstance(error, Rejected):
                error.then()
            fail_replay(letter=letter, reason=explain(error))
        except Exception as error:  # noqa: BLE001 - the caller decides when it is tried again
            return letter, error
        else:
            InboundDeadLetter.objects.filter(id=letter.id).update(replayed_at=Now())
            after_commit(lambda: log.info("event replayed", **envelope.ids, topic=letter.topic))
    return letter, None


def fail_replay(*, letter: InboundDeadLetter, reason: str) -> None:
    """Make a letter dead again after its replay failed, unless it was discarded or erased meanwhile.

    `error` keeps the first reason in its first line. The new reason may quote the event, which is why an
    erased letter does not get it.
    """
    first = letter.error.partition("\n")[0]
    if (
        InboundDeadLetter.objects.unresolved()
        .filter(id=letter.id)
        .update(
            error=f"{first}\nReplayed: {make_storable(reason)[:1000]}",
            failed_at=Now(),
            replay_requested_at=None,
        )
    ):
        after_commit(
            lambda: log.error("event dead-lettered", **_ids_of(letter), topic=letter.topic, reason=reason)
        )


def explain(error: Exception) -> str:
    """Return in one line why an event is dead, without the rows in a database error's further lines."""
    first = str(error).partition("\n")[0]
    return first if isinstance(error, Rejected) else f"{type(error).__name__}: {first}"


def _replay(letter: InboundDeadLetter, handlers: Mapping[str, Handler]) -> Envelope:
    """Apply a letter's event in the caller's transaction, with its row locked."""
    handler = handlers.get(letter.topic)
    if handler is None:  # a setting was turned off after a person had requested the replay
        raise Rejected(f"its topic {letter.topic} is not consumed now: turn it on, or discard the event")
    envelope = read_envelope(topic=letter.topic, value=letter.envelope.encode())
    rejected = None
    with context.working_for(envelope.context):
        try:
            handler(envelope)
        except Rejected as reason:
            rejected = reason
        receipt = _record(envelope, letter.consumer)
        # The inbox forgets an event before its letter is deleted, and takes the event again after that.
        if receipt.first_at is not None and receipt.first_at > id_time(letter.id) + CLOCKS_APART:
            raise Rejected(f"it was processed at {receipt.first_at:%Y-%m-%d %H:%M} UTC, after it had died")
    if rejected is not None:
        raise rejected
    return envelope


def _ids_of(letter: InboundDeadLetter) -> dict[str, str]:
    """Return the ids of a log line, or if the envelope cannot be read only the event's id."""
    envelope = open_message(_received(letter)).envelope
    return envelope.ids if envelope else event_ids(event_id=letter.event_id, event_type=letter.topic)


def _unreadable(received: Received) -> Envelope:
    id = event_id_of(topic=received.topic, value=received.value)
    return Envelope(id, received.topic, 1, producer_of(value=received.value), {}, {})


def _record(envelope: Envelope, consumer: str) -> Receipt:
    key = EventKey(envelope.id, consumer, envelope.producer)
    return ProcessedEvent.objects.record(key=key, event_type=envelope.type)


def _times(envelope: Envelope, written_at: dt.datetime | None) -> list[dt.datetime]:
    return [time for time in (envelope.timestamp, written_at) if time is not None]


def _remembered() -> dt.timedelta:
    """Return how long the inbox surely remembers an event."""
    return dt.timedelta(days=settings.PROCESSED_EVENT_DAYS) - CLOCKS_APART


def _check_age(envelope: Envelope, written_at: dt.datetime | None, now: dt.datetime) -> None:
    """Raise `Rejected` for an event so old that the row of its first processing may have been deleted."""
    times = _times(envelope, written_at)
    if times and now - min(times) > _remembered():
        written, days = f"{min(times):%Y-%m-%d %H:%M} UTC", settings.PROCESSED_EVENT_DAYS
        raise Rejected(f"it is of {written}, and the inbox remembers {days} days: it may be a repeat")


def _original(text: str, *, is_exact: bool) -> Any:
    """Return the envelope as parsed JSON, or as text if it is not exactly what came.

    Cut it to fit the broker's limit.
    """
    if len(text) > LARGEST // 4:
        return text[:1000]
    try:
        original = read_json(text.encode()) if is_exact else text
    except Rejected:
        original = text
    # PostgreSQL writes a control character as six characters, and 1e300 as 301 digits.
    with connection.cursor() as cursor:
        cursor.execute("SELECT octet_length(%s::jsonb::text)", [json.dumps(original)])
        (size,) = cursor.fetchone()
    return original if size <= LARGEST // 2 else text[:1000]
