"""Send published events again to a consumer that lost or missed them.

An event keeps its id, and a consumer that has processed it drops it as a repeat. `outbox_events` does not
change.

A resend does not go through the relay: a million resent events delay no new one, and a resent event that the
broker refuses holds back no other.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import uuid
from collections.abc import Sequence

import structlog

from events.models.envelope_sql import OutgoingEvent
from events.models.events import DomainEventQuerySet
from events.publishing.messages import message_of
from events.transports import BrokerAway, BrokerPublisher, MessageRefused, TopicUnavailable, publisher
from runtime.database.periods import narrow_to_created

log = structlog.get_logger(__name__)

BATCH = 500


@dataclasses.dataclass(slots=True)
class Resent:
    """The number of events that were sent again, and by id why the broker refused others."""

    sent: int = 0
    refused: dict[uuid.UUID, str] = dataclasses.field(default_factory=dict)


def select_events(
    *,
    events: DomainEventQuerySet,
    ids: Sequence[uuid.UUID] = (),
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    types: Sequence[str] = (),
    aggregate_id: uuid.UUID | None = None,
) -> DomainEventQuerySet:
    """Filter `events` by every given argument. `since` is inclusive, `until` is not."""
    events = narrow_to_created(events, since=since, until=until)
    if ids:
        events = events.filter(id__in=ids)
    if types:
        events = events.filter(event_type__in=types)
    if aggregate_id:
        events = events.filter(aggregate_id=aggregate_id)
    return events


def resend_events(*, events: DomainEventQuerySet, limit: int | None = None) -> Resent:
    """Publish the published ones of `events` to their topics again, in the relay's order.

    Raise `BrokerAway` if the broker or a topic does not take them now. Some may have been sent then.
    """
    outgoing = events.published().outgoing(limit=limit)
    result = Resent()
    transport = publisher()
    try:
        while batch := list(itertools.islice(outgoing, BATCH)):
            _send(transport, batch, result)
    finally:
        transport.close()
        log.info("events sent again", count=result.sent, refused=len(result.refused))
    return result


def _send(transport: BrokerPublisher, batch: Sequence[OutgoingEvent], result: Resent) -> None:
    messages = [message_of(event) for event in batch]
    stopped: BrokerAway | None = None
    for event, answer in zip(batch, transport.publish(messages), strict=True):
        if answer is None:
            result.sent += 1
        elif isinstance(answer, MessageRefused):
            result.refused[event.id] = answer.reason
        else:
            reason = answer.reason if isinstance(answer, TopicUnavailable) else str(answer)
            stopped = BrokerAway(f"{event.topic}: {reason}")
    if stopped:
        raise stopped
