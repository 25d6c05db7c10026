"""The admin of e-mails, providers and suppressed addresses. Django imports this module by its name."""

from notifications.admin import attention, emails, search, suppressions

__all__ = ["attention", "emails", "search", "suppressions"]
