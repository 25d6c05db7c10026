from __future__ import annotations

import json

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured


class OrdersConfig(AppConfig):
    name = "orders"
    roles = {
        "viewer": ["orders.view_order"],
        "support": ["orders.correct_address", "orders.export_person"],
        "operator": ["orders.erase_person"],
    }

    def ready(self) -> None:
        """Register the orders of a source and the stuck orders, and check the declared events.

        The check compares them with settings, schemas and templates.
        Raise `ImproperlyConfigured`, which stops the process.
        """
        from events.consuming import handlers
        from notifications.template_checks import check_templates
        from orders.conditions import stuck_statement
        from orders.events import EMAILS, EVENTS
        from orders.inbound.payments_and_stock import NAME, OWN_TOPICS, subscribed
        from orders.models import Order
        from runtime.facts import register_stuck
        from web.api import sources

        sources.register(lambda source: Order.objects.filter(source=source).values("id"))
        register_stuck(stuck_statement)
        handlers.subscribe(handlers.Subscription(name=NAME, read=subscribed, own_topics=OWN_TOPICS))
        handlers.publish_topics(lambda: [event.topic for event in EVENTS.values()])
        for event in EVENTS.values():
            try:
                json.loads(event.schema.read_text())
            except (OSError, ValueError) as error:
                raise ImproperlyConfigured(
                    f"{event.name} has no schema in {event.schema}: {error}."
                ) from error
        check_templates(declared=EMAILS)
