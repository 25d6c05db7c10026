"""The admin pages of the engine's own tables; `base` is for the admin modules of all apps."""

from outbox.admin import events, pages

__all__ = ["events", "pages"]
