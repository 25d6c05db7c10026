"""The admin's first page, and the pages of jobs, pauses, tokens, heartbeats, and the audit log."""

from operations.admin import attention, audit, heartbeats, jobs, pauses, production, tokens

__all__ = ["attention", "audit", "heartbeats", "jobs", "pauses", "production", "tokens"]
