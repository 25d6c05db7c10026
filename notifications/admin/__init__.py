"""The admin of e-mails, providers and suppressed addresses."""

from notifications.admin import attention, emails, profiles, search, suppressions

__all__ = ["attention", "emails", "profiles", "search", "suppressions"]
