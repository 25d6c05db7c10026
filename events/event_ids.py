"""The ids in every log line about an event."""

from __future__ import annotations

import uuid


def event_ids(
    *,
    event_id: uuid.UUID,
    event_type: str,
    order_id: str = "",
    aggregate_id: uuid.UUID | None = None,
    correlation_id: str = "",
    traceparent: str = "",
) -> dict[str, str]:
    """Return the fields of a log line. `aggregate_id` is for an event that belongs to no order.

    An empty `correlation_id` or `traceparent` is taken from the current work, if there is one.

    >>> event_ids(event_id=uuid.UUID(int=1), event_type="a.b.v1", order_id="o", correlation_id="c")
    {'event_id': '00000000-0000-0000-0000-000000000001', 'order_id': 'o', 'event_type': 'a.b.v1', \
'correlation_id': 'c'}
    """
    ids = {"event_id": str(event_id)}
    if order_id:
        ids["order_id"] = order_id
    elif aggregate_id is not None:
        ids["aggregate_id"] = str(aggregate_id)
    ids["event_type"] = event_type
    if correlation_id:
        ids["correlation_id"] = correlation_id
    if traceparent:
        ids["trace_id"] = traceparent[3:35]
    return ids
