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
        "support": ["orders.correct_address", "orders.export_person"],
        "operator": ["orders.erase_person"],
    }

    def ready(self) -> None:
        """Hand in the orders of a source and the handlers of events, and check the declared events.

        The check compares them with settings, schemas and templates.
        Raise `ImproperlyConfigured`, which stops the process.
        """
        from events.consuming import handlers
        from events.schemas.schemas import schemas_made_by
        from notifications import samples, turns
        from notifications.api import sources
        from notifications.template_checks import check_templates
        from orders import untold
        from orders.emails import SAMPLES, sample_for
        from orders.events import EMAILS, EVENTS
        from orders.models import Order
        from orders.subscriptions import NAME, OWN_TOPICS, subscribed
        from orders.topic_schemas import make_schemas
        from runtime.jobs.work import WORK, Work

        samples.kinds, samples.order_for = SAMPLES, sample_for
        turns.overtaken_by = {event.name: event.overtaken_by for event in EVENTS.values()}
        sources.order_ids = lambda source: Order.objects.filter(source=source).values("id")
        handlers.subscription = handlers.Subscription(name=NAME, read=subscribed, own_topics=OWN_TOPICS)
        schemas_made_by(make_schemas)
        WORK.append(Work(is_waiting=untold.is_due, do=untold.tell_due))
        handlers.publish_topics(lambda: [event.topic for event in EVENTS.values()])
        for event in EVENTS.values():
            try:
                json.loads(event.schema.read_text())
            except (OSError, ValueError) as error:
                raise ImproperlyConfigured(
                    f"{event.name} has no schema in {event.schema}: {error}."
                ) from error
        check_templates(declared=EMAILS, samples=SAMPLES)
