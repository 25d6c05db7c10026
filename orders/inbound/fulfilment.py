"""Handle a warehouse's events about shipments (docs/reference/events.md).

A parcel that left is a fact. One that does not fit the order is stored, with a warning in its timeline.
"""

from __future__ import annotations

import functools
import uuid
from typing import Any

from events.consuming.envelope import Envelope
from orders import shipments
from orders.bodies import MAX_TRACKING, Fields, LineBody, ShipmentReference
from orders.inbound.fallbacks import FactBody, use_fallbacks
from orders.inbound.reading import InboundTopic, order_handler, read_data
from orders.services import OrderChange
from web.api.fields import Moment, Text, WebAddress


class ToldParcel(FactBody):
    """A parcel. Only its reference can refuse the event."""

    identity = "reference"
    reference = ShipmentReference()


class ParcelData(ToldParcel):
    carrier = Text(required=False, max_length=MAX_TRACKING)
    tracking_number = Text(required=False, max_length=MAX_TRACKING)
    tracking_url = WebAddress(required=False)
    shipped_at = Moment(required=False, help_text="The event's time if absent")

    def get_fields(self) -> Fields:
        options: Any = {
            "required": False,
            "max_length": 200,
            "help_text": "Absent if nobody says what it has",
        }
        return {"lines": LineBody(many=True, **options)} | super().get_fields()


class DeliveredData(ToldParcel):
    delivered_at = Moment(required=False, help_text="The event's time if absent")


class ReturnedData(ToldParcel):
    returned_at = Moment(required=False, help_text="The event's time if absent")


def shipment_created(event: Envelope, order_id: uuid.UUID) -> OrderChange:
    """Record a parcel that left. One whose reference was told before only gets the tracking that it lacks."""
    values, warnings = use_fallbacks(read_data(ParcelData, event.data, strict=False))
    values = {"lines": []} | values
    change, _ = shipments.ship(order_id=order_id, is_fact=True, event_at=event.timestamp, **values)
    return _warn(change, warnings)


def shipment_ended(event: Envelope, order_id: uuid.UUID, *, body: type[FactBody], column: str) -> OrderChange:
    """Record a parcel's delivery or return. If it comes before the parcel was told, remember it."""
    values, warnings = use_fallbacks(read_data(body, event.data, strict=False))
    change, _ = shipments.note_end(
        order_id=order_id,
        reference=values["reference"],
        column=column,
        at=values.get(column),
        event_at=event.timestamp,
    )
    return _warn(change, warnings)


def _warn(change: OrderChange, warnings: list[str]) -> OrderChange:
    for warning in warnings:
        change.warn(warning, about="shipment")
    return change


_delivered = functools.partial(shipment_ended, body=DeliveredData, column="delivered_at")
_returned = functools.partial(shipment_ended, body=ReturnedData, column="returned_at")
TOPICS = {
    "fulfilment.shipment.created.v1": InboundTopic(
        order_handler(shipment_created), ParcelData, "A parcel of an order left"
    ),
    "fulfilment.shipment.delivered.v1": InboundTopic(
        order_handler(_delivered), DeliveredData, "A parcel of an order was delivered"
    ),
    "fulfilment.shipment.returned.v1": InboundTopic(
        order_handler(_returned), ReturnedData, "A parcel of an order came back"
    ),
}
