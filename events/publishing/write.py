"""Write domain events in the transaction of their change."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Mapping
from typing import Any

from django.conf import settings

from events.models import SHARDS, DomainEvent
from events.publishing import notify
from runtime.database.ids import new_id
from runtime.database.save import save_together
from runtime.database.transactions import after_commit, require_transaction
from runtime.telemetry import context


def shard_of(aggregate_id: uuid.UUID) -> int:
    """Return the relay's shard of an aggregate, which is the same on every machine and in every version.

    >>> shard_of(uuid.UUID(int=1))
    46
    """
    return zlib.crc32(aggregate_id.bytes) % SHARDS


def write_event(
    *,
    aggregate_type: str,
    aggregate_id: uuid.UUID,
    event_type: str,
    sequence: int,
    payload: Mapping[str, Any],
) -> None:
    """Save a domain event in the caller's transaction. `new_event` describes the arguments."""
    save_together(
        new_event(
            aggregate_type=aggregate_type,
            aggregate_id=aggregate_id,
            event_type=event_type,
            sequence=sequence,
            payload=payload,
        )
    )


def new_event(
    *,
    aggregate_type: str,
    aggregate_id: uuid.UUID,
    event_type: str,
    sequence: int,
    payload: Mapping[str, Any],
    user_id: uuid.UUID | None = None,
) -> DomainEvent:
    """Return a domain event that the caller's transaction must save. Wake the relays after its commit.

    `event_type` is the topic, such as `order.order.paid.v1`. `sequence` is the aggregate's version after the
    change. The payload must not contain a person's name or address. Raise `TransactionRequired` outside a
    transaction.
    """
    require_transaction("a domain event")
    work = context.current()
    metadata = {
        "traceId": work.trace_id or None,
        "correlationId": work.correlation_id,
        "idempotencyKey": work.idempotency_key or f"{aggregate_id}:{event_type}:{sequence}",
        "userId": str(user_id) if user_id else None,
        **({"traceparent": work.traceparent} if work.traceparent else {}),
    }
    if settings.FAST_PATH:
        after_commit(notify.waker.wake)
    return DomainEvent(
        id=new_id(),
        aggregate_type=aggregate_type,
        aggregate_id=aggregate_id,
        event_type=event_type,
        sequence=sequence,
        payload=payload,
        metadata=metadata,
        shard=shard_of(aggregate_id),
    )
