"""Send published events again: to their topics, or to one consumer that lost or missed them.

An event keeps its id, so a consumer that has processed it drops it as a repeat. `outbox_events` does not
change. `manage.py resend_events` and the admin use this.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import itertools
import re
import uuid
from collections.abc import Sequence

import structlog

from outbox.database.ids import id_floor
from outbox.events.publishing.messages import message_of
from outbox.events.transports import BrokerAway, Publisher, Refused, TopicUnavailable, publisher
from outbox.models.events import OutboxEventQuerySet
from outbox.models.outgoing import OutgoingEvent

log = structlog.get_logger(__name__)

BATCH = 500
_CONSUMER = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclasses.dataclass(slots=True)
class Resent:
    """The number of events that were sent again, and by id why the broker refused others."""

    sent: int = 0
    refused: dict[uuid.UUID, str] = dataclasses.field(default_factory=dict)


def resend_topic(consumer: str) -> str:
    """Return the topic that only `consumer` reads. Raise `ValueError` if a topic cannot have that name."""
    if not _CONSUMER.fullmatch(consumer):
        raise ValueError(
            f"{consumer!r} is not a consumer's name: use up to 100 letters, digits, '.', '_' and '-'."
        )
    return f"{consumer}.resend"


def select_events(
    *,
    events: OutboxEventQuerySet,
    ids: Sequence[uuid.UUID] = (),
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
    types: Sequence[str] = (),
    aggregate_id: uuid.UUID | None = None,
) -> OutboxEventQuerySet:
    """Filter `events` by every given argument. `since` is inclusive, `until` is not."""
    margin = dt.timedelta(days=1)  # a row's time and its id's differ by less, and the id prunes partitions
    if ids:
        events = events.filter(id__in=ids)
    if since:
        events = events.filter(created_at__gte=since, id__gte=id_floor(since - margin))
    if until:
        events = events.filter(created_at__lt=until, id__lt=id_floor(until + margin))
    if types:
        events = events.filter(event_type__in=types)
    if aggregate_id:
        events = events.filter(aggregate_id=aggregate_id)
    return events


def resend_events(*, events: OutboxEventQuerySet, consumer: str = "", limit: int | None = None) -> Resent:
    """Publish the published ones of `events` again, in the relay's order.

    Send them to their own topics, or to the topic `<consumer>.resend`. Raise `BrokerAway` if the broker or a
    topic does not take them now. Some may have been sent then.
    """
    topic = resend_topic(consumer) if consumer else ""
    outgoing = events.published().outgoing(limit=limit)
    result = Resent()
    transport = publisher()
    try:
        while batch := list(itertools.islice(outgoing, BATCH)):
            _send(transport, batch, topic, result)
    finally:
        transport.close()
        log.info("events sent again", count=result.sent, refused=len(result.refused), consumer=consumer)
    return result


def _send(transport: Publisher, batch: Sequence[OutgoingEvent], topic: str, result: Resent) -> None:
    messages = [message_of(event, topic=topic) for event in batch]
    stopped: BrokerAway | None = None
    for event, answer in zip(batch, transport.publish(messages), strict=True):
        if answer is None:
            result.sent += 1
        elif isinstance(answer, Refused):
            result.refused[event.id] = answer.reason
        else:
            reason = answer.reason if isinstance(answer, TopicUnavailable) else str(answer)
            stopped = BrokerAway(f"{topic or event.topic}: {reason}")
    if stopped:
        raise stopped
