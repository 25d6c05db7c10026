"""The admin of e-mails, providers and suppressed addresses. Django finds this package by its name."""

from notifications.admin import attention, emails, profiles, search, suppressions

__all__ = ["attention", "emails", "profiles", "search", "suppressions"]
