"""Everything about getting an e-mail out; knows of orders no more than their id."""

from django.apps import AppConfig


class NotificationsConfig(AppConfig):
    name = "notifications"

    def ready(self) -> None:
        """Register the deploy checks."""
        from notifications import checks  # noqa: F401
