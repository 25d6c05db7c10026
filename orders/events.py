"""The order's events: the topic, the schema and the e-mail of each.

A misspelt name stops the start: config.settings compares NOTIFY_ON with `EVENTS`, and `OrdersConfig` the
schemas and the templates. The settings import this module, which must therefore import no models.
"""

from __future__ import annotations

import datetime as dt
import enum
import operator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orders.models import Order

SCHEMAS = Path(__file__).parent / "schemas"


class Email(enum.Enum):
    """The condition on which an event sends an e-mail."""

    NONE = "it has no templates"
    OPTIONAL = "only if NOTIFY_ON names it"
    DEFAULT = "unless NOTIFY_ON is set without it"


@dataclass(frozen=True, slots=True)
class OrderEvent:
    """One kind of change. templates/emails has its e-mail in a folder called `name`."""

    name: str
    topic: str  # an incompatible payload needs a new version of the topic
    email: Email
    #: The e-mail in words, for the people who change its texts.
    title: str = ""
    #: The event sends no e-mail if the order got one about the same event within this time.
    email_interval: dt.timedelta | None = None
    #: The later events that make an unsent e-mail about this one old news.
    overtaken_by: tuple[str, ...] = ()

    @property
    def schema(self) -> Path:
        return SCHEMAS / "out" / f"{self.topic}.json"


EVENTS: dict[str, OrderEvent] = {
    event.name: event
    for event in (
        OrderEvent("order.placed", "order.order.placed.v1", Email.OPTIONAL, title="Order received"),
        # A customer whose card is refused tries again at once, and the e-mail says no more than the shop.
        OrderEvent(
            "order.payment_failed",
            "order.order.payment_failed.v1",
            Email.OPTIONAL,
            title="Payment failed",
            email_interval=dt.timedelta(hours=1),
            overtaken_by=("order.paid", "order.cancelled"),
        ),
        OrderEvent(
            "order.paid",
            "order.order.paid.v1",
            Email.DEFAULT,
            title="Payment received",
            overtaken_by=("order.cancelled", "order.refunded"),
        ),
        OrderEvent(
            "order.confirmed",
            "order.order.confirmed.v1",
            Email.OPTIONAL,
            title="Order confirmed",
            overtaken_by=("order.completed", "order.cancelled", "order.refunded"),
        ),
        OrderEvent("order.completed", "order.order.completed.v1", Email.DEFAULT, title="Order completed"),
        OrderEvent("order.cancelled", "order.order.cancelled.v1", Email.DEFAULT, title="Order cancelled"),
        OrderEvent("order.refunded", "order.order.refunded.v1", Email.DEFAULT, title="Refund"),
        OrderEvent(
            "order.part_refunded", "order.order.part_refunded.v1", Email.DEFAULT, title="Partial refund"
        ),
        OrderEvent("order.shipped", "order.shipment.created.v1", Email.DEFAULT, title="Parcel on its way"),
        OrderEvent("order.shipment_updated", "order.shipment.updated.v1", Email.NONE),
        OrderEvent(
            "order.delivered", "order.shipment.delivered.v1", Email.OPTIONAL, title="Parcel delivered"
        ),
        OrderEvent("order.shipment_returned", "order.shipment.returned.v1", Email.NONE),
    )
}
#: The events that have templates, and those that send an e-mail by default.
EMAILS = [event.name for event in EVENTS.values() if event.email is not Email.NONE]
DEFAULT_EMAILS = [event.name for event in EVENTS.values() if event.email is Email.DEFAULT]


#: The order's columns in its events, by their names there. No name, no address and no free text.
PUBLISHED = {
    "orderId": "id",
    "userId": "user_id",
    "status": "status",
    "fulfilment": "fulfilment",
    "totalAmount": "total_amount",
    "refundedAmount": "refunded_amount",
    "currency": "currency",
}
_values = operator.attrgetter(*PUBLISHED.values())
#: The keys of values that are no JSON.
_WORDS = ("orderId", "userId", "status", "fulfilment")


def event_payload(*, order: Order, details: dict[str, Any]) -> dict[str, Any]:
    """Return the payload of an order's event. `details` are the fields of this kind of event, in camelCase.

    The payload has no name and no address. Consumers read them from the API.
    """
    payload = dict(zip(PUBLISHED, _values(order), strict=True))
    for key in _WORDS:
        payload[key] = str(payload[key])
    payload.update(details)
    return payload
