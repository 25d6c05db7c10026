"""The admin pages of the engine's own tables; `shared` and `front` are for the admin modules of all apps."""

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
