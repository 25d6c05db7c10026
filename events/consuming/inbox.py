"""Process an event of another service once, also if it is repeated, late or broken.

The handler's changes and the row in `processed_events` are one transaction, so a repeat changes nothing. An
event that can never be processed or failed six times becomes a dead letter with its reason, for an operator,
and is published to `<topic>.dlt`. events.consuming.consumer and the API of events call this module.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal

import structlog
from django.conf import settings
from django.db import DataError, transaction
from django.db.models.functions import Now
from opentelemetry.trace import Span, SpanKind, StatusCode

from events.consuming.envelope import LARGEST, Envelope, Rejected, event_id_of, read_envelope, read_json
from events.event_ids import event_ids
from events.models import InboundDeadLetter, ProcessedEvent
from events.models.inbox import Receipt
from events.publishing.publish import write_event
from events.transports import Received
from runtime.database.ids import id_time
from runtime.database.transactions import after_commit
from runtime.personal_data import ERASED
from runtime.telemetry import context, tracing

log = structlog.get_logger(__name__)

#: A margin, because `processed_events` expire by the database's clock, but an event has its producer's time.
CLOCKS_APART = dt.timedelta(hours=1)

Processing = Literal["done", "repeat", "dead", "own"]
#: A function that does what the event says, in the caller's transaction. It may raise `Rejected`.
Handler = Callable[[Envelope], None]


def process(
    *,
    received: Received,
    consumer: str,
    handlers: Mapping[str, Handler],
    own_topics: Collection[str] = (),
) -> Processing:
    """Apply an event once, in one transaction.

    This service publishes to `own_topics`, too, so skip its own events there (`EVENT_SOURCE`). Make the event
    a dead letter after `Rejected` or `DataError`. Raise every other error of the database or a handler. The
    caller must then try the event again.
    """
    try:
        envelope = read_envelope(topic=received.topic, value=received.value)
    except Rejected as reason:
        return dead_letter(received=received, consumer=consumer, reason=str(reason))
    if received.topic in own_topics and envelope.producer == settings.EVENT_SOURCE:
        return "own"
    with _working_on(envelope, consumer) as span:
        try:
            receipt = _apply_once(envelope, consumer, handlers[envelope.type], received.written_at)
        except (Rejected, DataError) as error:
            span.set_status(StatusCode.ERROR, explain(error))
            return dead_letter(received=received, consumer=consumer, reason=explain(error), envelope=envelope)
    return "done" if receipt.is_first else "repeat"


def process_or_reject(
    *, envelope: Envelope, consumer: str, handlers: Mapping[str, Handler]
) -> Literal["done", "repeat"]:
    """Apply an event once, in one transaction, as `process` does. `handlers` must have its topic.

    Raise `Rejected` instead of making it a dead letter. Nothing is stored then, so the sender can correct the
    event and send it again. Raise every other error as `process` does.
    """
    with _working_on(envelope, consumer):
        try:
            receipt = _apply_once(envelope, consumer, handlers[envelope.type])
        except DataError as error:
            raise Rejected(explain(error)) from error
    if receipt.is_first:
        return "done"
    letters = InboundDeadLetter.objects.filter(event_id=envelope.id, consumer=consumer, replayed_at=None)
    # An erased letter does not tell its source. It had no effect, so the event must not count as a repeat.
    if any(letter.envelope == ERASED or receipt.source == _producer_of(letter) for letter in letters):
        raise Rejected("a broker delivered it before, and it became a dead letter: an operator decides")
    return "repeat"


def _producer_of(letter: InboundDeadLetter) -> str:
    """Return what the inbox recorded as the source of a letter's event."""
    return known_of(Received(letter.topic, letter.key, letter.envelope.encode(), None)).producer[:100]


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


def _apply_once(
    envelope: Envelope, consumer: str, handler: Handler, written_at: dt.datetime | None = None
) -> Receipt:
    """Record the event and call its handler unless it is a repeat. Raise what the handler raises."""
    with transaction.atomic(durable=True):
        receipt = _record(envelope, consumer)
        if receipt.is_first:
            _check_age(envelope, written_at, receipt.received_at)
            handler(envelope)
    if receipt.is_first:
        log.info("event taken", **envelope.ids, topic=envelope.type)
    else:
        log.info("event repeated", **envelope.ids, topic=envelope.type)
    return receipt


def dead_letter(
    *, received: Received, consumer: str, reason: str, envelope: Envelope | None = None
) -> Literal["dead", "repeat"]:
    """Store an event for an operator and write its `.dlt` event, once, in one transaction."""
    known = envelope or known_of(received)
    event_id = known.id
    text = received.value[:LARGEST].decode("utf-8", "replace").replace("\x00", "")
    reason = _storable(reason)[:1000]
    with transaction.atomic(durable=True):
        if not _record(known, consumer).is_first:
            return "repeat"
        InboundDeadLetter.objects.create(
            topic=received.topic[:255],
            key=received.key[:255].replace("\x00", ""),
            event_id=event_id,
            consumer=consumer,
            envelope=text,
            error=reason,
        )
        write_event(
            aggregate_type="event",
            aggregate_id=event_id,
            event_type=f"{received.topic}.dlt",
            sequence=1,
            payload={
                "eventId": str(event_id),
                "originalEvent": _original(text),
                "errorMessage": reason,
                "failedAt": dt.datetime.now(dt.UTC).isoformat(),
                "consumerService": consumer,
            },
        )
    log.error("event is dead", **known.ids, topic=received.topic, reason=reason)
    return "dead"


def replay_next(
    *, consumer: str, handlers: Mapping[str, Handler], skip: Collection[uuid.UUID] = ()
) -> tuple[InboundDeadLetter, Exception | None] | None:
    """Process the next dead letter whose replay was requested. Return None if none waits.

    The letter's row lock and its `replayed_at`, in the handler's transaction, ensure that it is applied once.
    A replayed event may be of any age. If it is rejected again, it is dead again, with the new reason. Return
    the letter, and the error after which the caller must try it again. Raise only connection errors.
    """
    letters = InboundDeadLetter.objects.replay_requested().filter(consumer=consumer, topic__in=list(handlers))
    with transaction.atomic(durable=True):
        letter = letters.exclude(id__in=skip).order_by("id").select_for_update(skip_locked=True).first()
        if letter is None:
            return None
        try:
            with transaction.atomic():
                envelope = _apply(letter, handlers)
        except (Rejected, DataError) as error:
            fail_replay(letter=letter, reason=explain(error))
        except Exception as error:  # noqa: BLE001 - the caller decides when it is tried again
            return letter, error
        else:
            InboundDeadLetter.objects.filter(id=letter.id).update(replayed_at=Now())
            after_commit(lambda: log.info("event replayed", **envelope.ids, topic=letter.topic))
    return letter, None


def fail_replay(*, letter: InboundDeadLetter, reason: str) -> None:
    """Make a letter dead again after its replay failed, unless it was discarded or erased meanwhile.

    The reason may quote the event, so it must not be written into an erased letter.
    """
    if (
        InboundDeadLetter.objects.unresolved()
        .filter(id=letter.id)
        .update(error=_storable(reason)[:1000], failed_at=Now(), replay_requested_at=None)
    ):
        after_commit(lambda: log.error("event is dead", **_ids_of(letter), topic=letter.topic, reason=reason))


def known_of(received: Received) -> Envelope:
    """Return a message's envelope, or if it cannot be read one with only its id and its topic."""
    try:
        return read_envelope(topic=received.topic, value=received.value)
    except Rejected:
        id = event_id_of(topic=received.topic, value=received.value)
        return Envelope(id, received.topic, 1, "", {}, {})


def explain(error: Exception) -> str:
    """Return in one line why an event is dead, because the other lines of a database's error show rows."""
    first = str(error).partition("\n")[0]
    return first if isinstance(error, Rejected) else f"{type(error).__name__}: {first}"


def _apply(letter: InboundDeadLetter, handlers: Mapping[str, Handler]) -> Envelope:
    envelope = read_envelope(topic=letter.topic, value=letter.envelope.encode())
    with context.working_for(envelope.context):
        receipt = _record(envelope, letter.consumer)
        # The inbox forgets a letter's event before the letter, and then takes the event again.
        if not receipt.is_first and receipt.first_at > id_time(letter.id) + CLOCKS_APART:
            raise Rejected(f"it was processed at {receipt.first_at:%Y-%m-%d %H:%M} UTC, after it had died")
        handlers[letter.topic](envelope)
    return envelope


def _ids_of(letter: InboundDeadLetter) -> dict[str, str]:
    """Return the ids of a log line, or if the envelope cannot be read only the event's id."""
    try:
        return read_envelope(topic=letter.topic, value=letter.envelope.encode()).ids
    except Rejected:
        return event_ids(event_id=letter.event_id, event_type=letter.topic)


def _record(envelope: Envelope, consumer: str) -> Receipt:
    return ProcessedEvent.objects.record(
        event_id=envelope.id,
        consumer=consumer,
        event_type=envelope.type,
        producer=envelope.producer,
    )


def _check_age(envelope: Envelope, written_at: dt.datetime | None, now: dt.datetime) -> None:
    """Raise `Rejected` for an event so old that the row of its first processing may have been deleted."""
    days = settings.PROCESSED_EVENT_DAYS
    times = [time for time in (envelope.timestamp, written_at) if time is not None]
    if times and now - min(times) > dt.timedelta(days=days) - CLOCKS_APART:
        written = f"{min(times):%Y-%m-%d %H:%M} UTC"
        raise Rejected(f"it is of {written}, and the inbox remembers {days} days: it may be a repeat")


def _original(text: str) -> Any:
    """Return the envelope as parsed JSON or as text. Cut a long one, because a dead letter has a limit."""
    if len(text) > LARGEST // 4:
        return text[:1000]
    try:
        return read_json(text)
    except Rejected:
        return text


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\x00", "")
