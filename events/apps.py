from __future__ import annotations

from django.apps import AppConfig


class EventsConfig(AppConfig):
    name = "events"
    roles = {
        "viewer": ["events.view_domainevent", "events.view_inbounddeadletter"],
        "operator": ["events.resolve_domainevent", "events.resolve_inbounddeadletter"],
    }

    def ready(self) -> None:
        """Check KAFKA_OPTIONS, so that a wrong one stops every process."""
        from django.conf import settings

        if settings.KAFKA_OPTIONS:
            from events.transports import kafka

            kafka.check_options()
