"""The admin pages of the engine's tables. The admin modules of all apps use `shared` and `front`."""

from outbox.admin import attention, audit, events, heartbeats, jobs, partitions, pauses, production, tokens

__all__ = [
    "attention",
    "audit",
    "events",
    "heartbeats",
    "jobs",
    "partitions",
    "pauses",
    "production",
    "tokens",
]
