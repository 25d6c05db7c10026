"""The retention rules of `outbox_events`."""

from __future__ import annotations

from outbox.database.partitioned import Quotes, RetentionRules

_KEY_ERASED = "jsonb_set(metadata, '{idempotencyKey}', to_jsonb(id::text))"

EVENT_RETENTION = RetentionRules(
    interval="day",
    unfinished={
        "not published": "published_at IS NULL AND dead_lettered_at IS NULL",
        "dead-lettered": "published_at IS NULL AND dead_lettered_at IS NOT NULL AND discarded_at IS NULL",
    },
    unfinished_help="They leave after the relay has published them or an operator has discarded them.",
    owner_column="aggregate_id",
    # A tracking link may contain a customer's token, and a caller's idempotency key may contain any text.
    personal="(payload ? 'trackingUrl' OR metadata->>'idempotencyKey' LIKE '%@%')",
    erased={
        "payload": "payload - 'trackingUrl'",
        "metadata": f"CASE WHEN metadata->>'idempotencyKey' LIKE '%@%' THEN {_KEY_ERASED} ELSE metadata END",
    },
    quotes=(
        # A dead letter of an inbound event quotes that event, and its error may repeat a part of it.
        Quotes(
            condition="event_type LIKE '%.dlt' AND payload ? 'originalEvent'",
            column="payload",
            erased={"payload": "(payload - 'originalEvent') || '{\"errorMessage\": \"[erased]\"}'"},
        ),
        # A caller's key may name a person who does not own the order.
        Quotes(
            condition="metadata->>'idempotencyKey' LIKE '%@%'",
            column="metadata",
            erased={"metadata": _KEY_ERASED},
            is_about_person=False,
        ),
    ),
)
