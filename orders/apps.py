"""Hand the orders' data and handlers to the packages below, and check the declared events at the start."""

from __future__ import annotations

import json

from django.apps import AppConfig
from django.core.exceptions import ImproperlyConfigured


class OrdersConfig(AppConfig):
    name = "orders"
    scopes = ("orders:read", "orders:write", "events:write")
    roles = {
        "viewer": ["orders.view_order"],
        "support": ["orders.view_order", "orders.correct_address", "orders.export_person"],
        "operator": ["orders.erase_person"],
    }
    shop_rights = ("orders.view_order", "orders.correct_address", "orders.export_person")

    def ready(self) -> None:
        """Register what the packages below do not know of orders, and check the declared events.

        The check compares them with settings, schemas and templates.
        Raise `ImproperlyConfigured`, which stops the process.
        """
        from events.consuming import handlers
        from events.schemas.schemas import register_schemas
        from notifications.changes.turns import register_overtaken
        from notifications.content.sample_orders import register_samples
        from notifications.content.template_checks import check_templates
        from orders import untold
        from orders.emails import samples_of
        from orders.events import EMAILS, EVENTS
        from orders.models import Order
        from orders.subscriptions import NAME, PUBLISHED_TOPICS, order_of, subscribed
        from orders.topic_schemas import make_schemas
        from runtime.binding import register_order_ids
        from runtime.jobs.work import BackgroundStep, register_work

        register_samples(samples_of)
        register_overtaken({event.name: event.overtaken_by for event in EVENTS.values()})
        register_order_ids(lambda sources: Order.objects.filter(source__in=sources).values("id"))
        handlers.register_subscription(
            handlers.Subscription(
                name=NAME, read=subscribed, order_of=order_of, published_topics=PUBLISHED_TOPICS
            )
        )
        register_schemas(make_schemas)
        handlers.register_topics(lambda: [event.topic for event in EVENTS.values()])
        register_work(BackgroundStep(is_waiting=untold.is_due, do=untold.tell_due))
        for event in EVENTS.values():
            try:
                json.loads(event.schema.read_text())
            except (OSError, ValueError) as error:
                raise ImproperlyConfigured(
                    f"{event.name} has no schema in {event.schema}: {error}."
                ) from error
        check_templates(declared=EMAILS)
