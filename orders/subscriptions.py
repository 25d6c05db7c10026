"""The topics that orderpost takes, and the handler of each."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

from django.conf import settings

from events.consuming.envelope import Envelope
from events.consuming.handlers import Handler
from notifications.connected import order_sources
from orders.inbound import commands, external, fulfilment, payments, stock
from orders.inbound.reading import InboundTopic, order_id_of
from orders.models import Order

#: The consumer's name in the inbox.
NAME = "orders"
#: A `.v2` may have a topic next to its `.v1`.
OTHER_TOPICS = payments.TOPICS | stock.TOPICS | fulfilment.TOPICS
#: Topics to which orderpost publishes, too.
PUBLISHED_TOPICS = frozenset(external.TOPICS)


def _handlers(topics: Mapping[str, InboundTopic]) -> dict[str, Handler]:
    return {name: topic.handler for name, topic in topics.items()}


OTHER_SERVICES = _handlers(OTHER_TOPICS)
#: What each topic that HTTP may take reads of an event.
DATA = {name: topic.body for name, topic in (OTHER_TOPICS | external.TOPICS).items()}
_EXTERNAL, _COMMANDS = _handlers(external.TOPICS), _handlers(commands.TOPICS)
HANDLERS = OTHER_SERVICES | _EXTERNAL | _COMMANDS


def subscribed() -> dict[str, Handler]:
    """Return the handlers of the topics that the settings choose."""
    return {
        **OTHER_SERVICES,
        **(_EXTERNAL if settings.ORDER_SOURCES else {}),
        **(_COMMANDS if settings.EVENT_COMMANDS else {}),
    }


def order_of(event: Envelope) -> uuid.UUID | None:
    """Return the order in `data.orderId`, which is another system's own id in the events of its orders.

    An event of one shop that names the order of another is about neither: no shop may read it.
    """
    value, is_shops = event.data.get("orderId"), event.type in external.TOPICS
    if is_shops and isinstance(value, str) and value:
        id: uuid.UUID | None = external.our_id(source=event.producer, id=value)
    else:
        id = order_id_of(event)
    if id is None or not (is_shops or event.producer in order_sources()):
        return id
    is_anothers = Order.objects.filter(id=id).exclude(source=event.producer).exists()
    return None if is_anothers else id


def over_http() -> dict[str, Handler]:
    """Return the handlers of the topics that the API of events takes. It takes no commands.

    A shop that connects itself is no setting, so the handlers find out whose orders are taken.
    """
    return {**OTHER_SERVICES, **_EXTERNAL}
