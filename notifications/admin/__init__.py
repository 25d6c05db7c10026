"""The triage screens: e-mails, providers, suppressed addresses. Django loads this module by its name."""

from notifications.admin import emails, suppressions

__all__ = ["emails", "suppressions"]
