"""The topics that orderpost takes, and the handler of each."""

from __future__ import annotations

from django.conf import settings

from events.consuming.handlers import Handler
from orders.inbound import commands, external, payments, stock

#: The consumer's name in the inbox.
NAME = "orders"
#: A `.v2` may have a handler next to its `.v1`.
OTHER_SERVICES: dict[str, Handler] = {**payments.HANDLERS, **stock.HANDLERS}
HANDLERS: dict[str, Handler] = {**OTHER_SERVICES, **external.HANDLERS, **commands.HANDLERS}
#: Topics to which orderpost publishes, too.
OWN_TOPICS = frozenset(external.HANDLERS)


def subscribed() -> dict[str, Handler]:
    """Return the handlers of the topics that the settings choose."""
    return {
        **OTHER_SERVICES,
        **(external.HANDLERS if settings.ORDER_SOURCES else {}),
        **(commands.HANDLERS if settings.EVENT_COMMANDS else {}),
    }


def over_http() -> dict[str, Handler]:
    """Return the handlers of the topics that the API of events takes. It takes no commands."""
    return {topic: handler for topic, handler in subscribed().items() if topic not in commands.HANDLERS}
