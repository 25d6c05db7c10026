"""Make the messages of events, and send them with a span for each."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from opentelemetry.trace import SpanKind

from events.models.envelope_sql import OutgoingEvent
from events.transports import BrokerAnswer, BrokerPublisher, Message
from runtime.telemetry import tracing


def message_of(event: OutgoingEvent, *, traceparent: str = "") -> Message:
    """Make an event's message with its ids as headers."""
    headers = [("eventId", str(event.id))]
    if event.correlation_id:
        headers.append(("correlationId", event.correlation_id))
    if trace := traceparent or event.traceparent:
        headers.append(("traceparent", trace))
    return Message(event.topic, str(event.aggregate_id), event.envelope, tuple(headers))


def publish_events(transport: BrokerPublisher, events: Sequence[OutgoingEvent]) -> list[BrokerAnswer]:
    """Publish events, with a span for each event that has a trace."""
    messages = []
    with contextlib.ExitStack() as begun:
        for event in events:
            if not event.traceparent:
                messages.append(message_of(event))
                continue
            name = f"publish {event.topic}"
            span = begun.enter_context(tracing.span(name, kind=SpanKind.PRODUCER, parent=event.traceparent))
            span.set_attribute("messaging.operation.type", "send")
            span.set_attribute("messaging.destination.name", event.topic)
            span.set_attribute("messaging.message.id", str(event.id))
            messages.append(message_of(event, traceparent=tracing.traceparent_of(span)))
        return transport.publish(messages)
