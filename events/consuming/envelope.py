"""Read the envelope of an inbound event: JSON with the fields that docs/reference/events.md lists."""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from events.event_ids import event_ids
from events.transports.base import LARGEST
from runtime.telemetry import context
from web.api.bodies import NotStrict, UnfitPart, check_parts, parse_json

DEEPEST = 100  # levels of lists and objects
_NAMESPACE = uuid.UUID("6f3c0c9e-6f0b-5a52-9a59-0d4e3f1b7a11")  # for the ids of events without an id


class Rejected(Exception):
    """An event can never be processed. The text says why.

    `then` is called after the event's transaction was rolled back, before the refusal is stored or answered.
    If it raises an error of the database, the event must be tried again.
    """

    def __init__(self, reason: str = "", *, then: Callable[[], None] | None = None) -> None:
        super().__init__(reason)
        self.then = then or (lambda: None)


@dataclasses.dataclass(slots=True)
class Effects:
    """A handler's words for the sender of its event. Only an answer over HTTP shows it.

    `why_withheld` says why the event of another system's order sends no e-mail. It is empty if it sends one,
    and None before the event is handled.
    """

    warnings: list[str] = dataclasses.field(default_factory=list)
    why_withheld: str | None = None

    def forget(self) -> None:
        """Say nothing: what the handler did was undone."""
        self.warnings.clear()
        self.why_withheld = None


@dataclasses.dataclass(frozen=True, slots=True)
class Envelope:
    """An inbound event. The topic defines `data`, and the handler fills `effects`."""

    id: uuid.UUID
    type: str
    version: int
    source: str
    data: Mapping[str, Any]
    metadata: Mapping[str, Any]
    timestamp: dt.datetime | None = None  # by the producer's clock
    has_timestamp: bool = False  # also if it cannot be read
    effects: Effects = dataclasses.field(default_factory=Effects, compare=False)

    @property
    def producer(self) -> str:
        """The service that made the event: `metadata.source`, or `source` if no gateway added that."""
        return _string(self.metadata.get("source")) or self.source

    @property
    def context(self) -> context.Context:
        """The context of the work that the event causes, with its correlation id and its trace."""
        correlation = context.accept_correlation_id(_string(self.metadata.get("correlationId")))
        return context.Context(
            correlation or context.new_correlation_id(),
            traceparent=_traceparent(self.metadata, self.id),
            idempotency_key=f"event:{self.id}",
        )

    @property
    def ids(self) -> dict[str, str]:
        """The event's ids for a log line."""
        return event_ids(
            event_id=self.id,
            event_type=self.type,
            order_id=_order_id(self.data),
            correlation_id=context.accept_correlation_id(_string(self.metadata.get("correlationId"))) or "",
            traceparent=_traceparent(self.metadata, self.id),
        )


def read_envelope(*, topic: str, value: bytes) -> Envelope:
    """Read an envelope. Raise `Rejected` if it is not an envelope of this topic."""
    if len(value) > LARGEST:
        raise Rejected(f"it has {len(value):,} bytes, and at most {LARGEST:,} are taken")
    return envelope_of(read_json(value), topic=topic)


def envelope_of(document: object, *, topic: str) -> Envelope:
    """Return the envelope that parsed JSON is. Raise `Rejected` if it is not an envelope of this topic."""
    if not isinstance(document, dict):
        raise Rejected("it is not a JSON object")
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    envelope = Envelope(
        id=_uuid(document.get("eventId")),
        type=_text(document, "eventType"),
        version=document.get("version", 1),
        source=_text({"source": metadata.get("source")} | document, "source"),
        data=document.get("data") or {},
        metadata=metadata,
        timestamp=_time(document.get("timestamp")),
        has_timestamp=document.get("timestamp") is not None,
    )
    if envelope.type != topic:
        raise Rejected(f"its eventType is {envelope.type!r}, not its topic {topic!r}")
    if type(envelope.version) is not int or not topic.endswith(f".v{envelope.version}"):
        raise Rejected("its version is not the number at the end of its topic")
    if not isinstance(envelope.data, dict):
        raise Rejected("its data are not a JSON object")
    return envelope


def read_json(value: bytes) -> Any:
    """Parse JSON. Raise `Rejected` if it is not strict, or if PostgreSQL could not store it."""
    try:
        document = parse_json(value, deepest=DEEPEST)
    except NotStrict as error:
        raise Rejected(f"it {error.reason}") from error
    check_storable(document)
    return document


def event_id_of(*, topic: str, value: bytes) -> uuid.UUID:
    """Return the event's id, or else an id that these bytes always get."""
    document = _read_early(value)
    try:
        return uuid.UUID(document.get("eventId"))
    except (ValueError, TypeError, AttributeError):
        return uuid.uuid5(_NAMESPACE, hashlib.sha256(topic.encode() + value).hexdigest())


def producer_of(*, value: bytes) -> str:
    """Return the service that made an event whose envelope cannot be read, or an empty text.

    If it were left out, an event of another service with the same id would count as a repeat.
    """
    document = _read_early(value)
    metadata = document.get("metadata")
    if isinstance(metadata, UnfitPart):
        return ""  # it may name another source
    stated = metadata.get("source") if isinstance(metadata, dict) else None
    producer = _string(stated) or _string(document.get("source")) or ""
    try:
        _check_text(producer)
    except Rejected:
        return ""
    return producer


def _read_early(value: bytes) -> dict[str, Any]:
    """Return the members of an event that is not an envelope, or none if it cannot be read."""
    try:
        document = parse_json(value, deepest=DEEPEST)
    except NotStrict:
        return {}
    return document if isinstance(document, dict) else {}


def check_storable(document: object) -> None:
    """Raise `Rejected` for parsed JSON with an unfit part or that PostgreSQL could not store."""
    try:
        for text in check_parts(document, deepest=DEEPEST):
            _check_text(text)
    except NotStrict as error:
        raise Rejected(f"it {error.reason}") from error


def _check_text(value: str) -> None:
    if "\x00" in value:
        raise Rejected("it has a NUL character in it, which PostgreSQL cannot store")
    if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
        raise Rejected("it has a lone surrogate in it, which is not a character")


def _traceparent(metadata: Mapping[str, Any], event_id: uuid.UUID) -> str:
    """Return the event's `traceparent`, or one made of its `traceId`, or an empty string.

    The event's id becomes the parent's span id: the event stands for the span that caused the work.
    """
    if traceparent := context.accept_traceparent(_string(metadata.get("traceparent"))):
        return traceparent
    trace_id = _string(metadata.get("traceId"))
    return context.accept_traceparent(f"00-{trace_id}-{event_id.hex[16:]}-00") if trace_id else ""


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _order_id(data: Mapping[str, Any]) -> str:
    """Return the order's id for a log line, or an empty string if the value is not a UUID."""
    try:
        return str(uuid.UUID(data.get("orderId")))
    except (ValueError, TypeError, AttributeError):
        return ""


def _uuid(value: object) -> uuid.UUID:
    try:
        return uuid.UUID(value)  # type: ignore[arg-type]
    except (ValueError, TypeError, AttributeError) as error:
        raise Rejected("its eventId is not a UUID") from error


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not value:
        raise Rejected(f"its {name} is missing")
    return value


def _time(value: object) -> dt.datetime | None:
    try:
        time = dt.datetime.fromisoformat(value)  # type: ignore[arg-type]
        # PostgreSQL would store a time that is in year 0 in UTC, but psycopg could not read it.
        return time.astimezone(dt.UTC) if time.tzinfo else time.replace(tzinfo=dt.UTC)
    except (ValueError, TypeError, OverflowError):
        return None
