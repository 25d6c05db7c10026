"""The tables that still have the label `outbox`. Their migrations are here until each app has its own."""

from events.models import InboundDeadLetter, OutboxEvent, ProcessedEvent
from retention.models import DetachedPartition, Erasure
from runtime.models import BulkJob, Heartbeat, Pause, TrafficSum
from web.models import ApiToken, IdempotencyKey

__all__ = [
    "ApiToken",
    "BulkJob",
    "DetachedPartition",
    "Erasure",
    "Heartbeat",
    "IdempotencyKey",
    "InboundDeadLetter",
    "OutboxEvent",
    "Pause",
    "ProcessedEvent",
    "TrafficSum",
]
