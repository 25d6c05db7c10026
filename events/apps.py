from __future__ import annotations

from django.apps import AppConfig


class EventsConfig(AppConfig):
    name = "events"
    roles = {
        "viewer": ["events.view_domainevent", "events.view_inbounddeadletter"],
        "operator": ["events.resolve_domainevent", "events.resolve_inbounddeadletter"],
    }
    shop_rights = ("events.view_inbounddeadletter", "events.resolve_inbounddeadletter")

    def ready(self) -> None:
        """Let web processes write what they refused. Refuse to start with wrong KAFKA_OPTIONS."""
        from django.conf import settings

        from events.consuming import refusals
        from web import heartbeat

        heartbeat.register_writer(refusals.write)
        if settings.KAFKA_OPTIONS:
            from events.transports import kafka

            kafka.check_options()
