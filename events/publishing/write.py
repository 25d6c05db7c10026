"""Write domain events in the transaction of their change. Called by orders, notifications and the inbox."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Mapping
from typing import Any

from django.conf import settings

from events.models import SHARDS
from events.publishing import notify
from runtime.database.ids import new_id
from runtime.database.statement import StatementPart, execute, insert
from runtime.database.transactions import require_transaction
from runtime.telemetry import context

_NEW = (("retry_count", "0"), ("last_error", "''"))


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
    """Save a domain event in the caller's transaction. The relay sends it later.

    `event_insert` describes the arguments. Raise `TransactionRequired` outside a transaction.
    """
    require_transaction("a domain event")
    part = event_insert(
        aggregate_type=aggregate_type,
        aggregate_id=aggregate_id,
        event_type=event_type,
        sequence=sequence,
        payload=payload,
    )
    execute(inserts=[part])


def event_insert(
    *,
    aggregate_type: str,
    aggregate_id: uuid.UUID,
    event_type: str,
    sequence: int,
    payload: Mapping[str, Any],
    user_id: uuid.UUID | None = None,
) -> StatementPart:
    """Return the insert of a domain event, for the statement of the change that it reports.

    `event_type` is the topic, such as `order.order.paid.v1`. `sequence` is the aggregate's version after the
    change. The payload must not contain a person's name or address.
    """
    work = context.current()
    metadata = {
        "traceId": work.trace_id or None,
        "correlationId": work.correlation_id,
        "idempotencyKey": work.idempotency_key or f"{aggregate_id}:{event_type}:{sequence}",
        "userId": str(user_id) if user_id else None,
        **({"traceparent": work.traceparent} if work.traceparent else {}),
    }
    row = {  # the other columns have defaults in the database, such as `position`, the number in the stream
        "id": new_id(),
        "aggregate_type": aggregate_type,
        "aggregate_id": aggregate_id,
        "event_type": event_type,
        "version": 1,  # of the payload's schema
        "sequence": sequence,
        "payload": payload,
        "metadata": metadata,
        "shard": shard_of(aggregate_id),
    }
    return insert("outbox_events", row, fixed=_NEW, on_commit=_wake if settings.FAST_PATH else None)


def _wake() -> None:
    notify.waker.wake()
