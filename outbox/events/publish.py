"""Writing domain events: the one door for the apps above."""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

from django.conf import settings
from django.db import connection, transaction

from outbox.core import context
from outbox.core.ids import new_id
from outbox.core.transactions import require_transaction
from outbox.events import notify as announce
from outbox.models import SHARDS


def shard_of(aggregate_id: uuid.UUID) -> int:
    """This function will spread aggregates over the relay's shards; the same on every machine and version.

    >>> shard_of(uuid.UUID(int=1))
    46
    """
    return zlib.crc32(aggregate_id.bytes) % SHARDS


def publish_event(
    *,
    aggregate_type: str,
    aggregate_id: uuid.UUID,
    event_type: str,
    sequence: int,
    payload: Mapping[str, Any],
    user_id: uuid.UUID | None = None,
    version: int = 1,
) -> uuid.UUID:
    """This function will save a domain event in the caller's transaction, for the relay; gives its id.

    `sequence` is the aggregate's version after the change, `version` that of the payload's schema. The
    payload has no name and no address. Raises `TransactionRequired` outside a transaction.
    """
    require_transaction("a domain event")
    work = context.current()
    if settings.FAST_PATH:
        transaction.on_commit(lambda: announce.waker.wake(), robust=True)
    event_id = new_id()
    metadata = {
        "traceId": work.trace_id or None,
        "correlationId": work.correlation_id,
        "idempotencyKey": work.idempotency_key or f"{aggregate_id}:{event_type}:{sequence}",
        "userId": str(user_id) if user_id else None,
    }
    with connection.cursor() as cursor:
        # By hand: a third of what the ORM takes, on the path of every change (docs/performance.md).
        cursor.execute(
            "INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, version, sequence,"
            " payload, metadata, shard, retry_count, last_error)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, 0, '')",
            [
                event_id,
                aggregate_type,
                aggregate_id,
                event_type,
                version,
                sequence,
                json.dumps(payload),
                json.dumps(metadata),
                shard_of(aggregate_id),
            ],
        )
    return event_id


def republish_events(*, ids: Iterable[uuid.UUID]) -> list[uuid.UUID]:
    """This function will have failing and dead-lettered events tried again, with all their tries.

    Returns those that were; what is published, discarded or on its way anyhow is left alone.
    """
    return _resolve(
        ids,
        "dead_lettered_at IS NOT NULL OR retry_count > 0",
        "dead_lettered_at = NULL, retry_count = 0, next_attempt_at = statement_timestamp()",
    )


def discard_events(*, ids: Iterable[uuid.UUID]) -> list[uuid.UUID]:
    """This function will give dead-lettered events up; the later events of their aggregates go on."""
    return _resolve(ids, "dead_lettered_at IS NOT NULL", "discarded_at = statement_timestamp()")


def _resolve(ids: Iterable[uuid.UUID], condition: str, change: str) -> list[uuid.UUID]:
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE outbox_events SET {change} WHERE id = ANY(ARRAY("  # noqa: S608 - texts of this module
            "SELECT id FROM outbox_events WHERE id = ANY(%s) AND published_at IS NULL"
            f" AND discarded_at IS NULL AND ({condition}) ORDER BY id FOR UPDATE)) RETURNING id",
            [list(ids)],
        )
        return [id for (id,) in cursor.fetchall()]
