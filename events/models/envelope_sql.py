"""Read outgoing events: the envelope that PostgreSQL builds, and the ids for log lines."""

from __future__ import annotations

import uuid
from typing import NamedTuple

from django.db.models.fields.json import KT

from events.event_ids import event_ids
from events.models.states import BLOCKED, UNPUBLISHED
from runtime.database.postgres.cursor import Prepared

#: PostgreSQL builds the envelope, which saves parsing JSON in Python.
ENVELOPE = """
    json_build_object(
        'eventId', id,
        'timestamp', to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
        'eventType', event_type, 'version', version, 'source', %s::text, 'data', payload,
        'metadata', metadata || jsonb_build_object('sequence', sequence)
    )::text
"""


COLUMNS = (
    *("id", "aggregate_id", "event_type", "retry_count", "position"),
    *("correlation", "trace", "order", "envelope"),
)
#: The parts of a log line's ids that are not columns.
LOG_IDS = {
    "correlation": KT("metadata__correlationId"),
    "trace": KT("metadata__traceparent"),
    "order": KT("payload__orderId"),
}

# The statements of `DomainEventQuerySet.blocking` and `due`, which a relay runs in each round. Building them
# from querysets would cost as much as reading fifty events. With an array, one plan serves any number of
# values.
BLOCKING = Prepared(f"""
    SELECT DISTINCT aggregate_id FROM outbox_events
    WHERE shard = ANY(%s::int[]) AND id < %s AND {BLOCKED.sql}
""")  # noqa: S608 - texts of ours
DUE_SQL = Prepared(f"""
    SELECT id, aggregate_id, event_type, retry_count, position, metadata->>'correlationId',
        metadata->>'traceparent', payload->>'orderId', {ENVELOPE}
    FROM outbox_events
    WHERE {UNPUBLISHED.sql}
        AND shard = ANY(%s::int[]) AND id < %s AND position >= %s
        AND aggregate_id <> ALL(%s::uuid[]) AND event_type <> ALL(%s::text[])
    ORDER BY position LIMIT %s
""")  # noqa: S608 - texts of ours
#: The statement of `DomainEventQuerySet.mark_published`. One array costs less than hundreds of parameters,
#: but a plan without values prunes partitions only by the bounds. `coalesce` keeps the plan on the primary
#: key: the index of unpublished events, which UNPUBLISHED would choose, looks small and may be full of dead
#: entries.
MARK_PUBLISHED = Prepared(
    "UPDATE outbox_events SET published_at = statement_timestamp(), last_error = ''"
    " WHERE id = ANY(%s) AND id BETWEEN %s AND %s AND coalesce(published_at, dead_lettered_at) IS NULL"
)


class OutgoingEvent(NamedTuple):
    """An event on its way to the broker."""

    id: uuid.UUID
    aggregate_id: uuid.UUID
    topic: str
    retry_count: int
    position: int
    correlation_id: str
    traceparent: str
    order_id: str
    envelope: bytes

    @property
    def ids(self) -> dict[str, str]:
        """The ids for a log line."""
        return event_ids(
            event_id=self.id,
            event_type=self.topic,
            order_id=self.order_id,
            aggregate_id=self.aggregate_id,
            correlation_id=self.correlation_id,
            traceparent=self.traceparent,
        )
