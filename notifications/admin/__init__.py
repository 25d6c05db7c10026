"""The admin of e-mails, providers and suppressed addresses. Django finds this package by its name."""

from notifications.admin import attention, emails, search, suppressions

__all__ = ["attention", "emails", "search", "suppressions"]
