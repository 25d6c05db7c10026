"""The example services send the money that they move, as events that orderpost takes."""

from __future__ import annotations

import pytest

from tests.kit.events import envelope, handle, order, received, status
from tests.kit.examples import load
from tests.kit.schemas import validate_inbound
from tests.kit.words import OutboxEvent, cancel_order

pytestmark = pytest.mark.django_db
services = load("services")


def test_the_payment_service_captures_and_returns_the_amount_in_the_orders_currency():
    it = order(currency="EUR")
    for handler, published in ((services.capture, "placed"), (services.give_back, "cancelled")):
        if published == "cancelled":
            cancel_order(order_id=it.id)
        told = OutboxEvent.objects.get(event_type=f"order.order.{published}.v1")
        topic, data = handler(told.payload)
        assert data == {"orderId": str(it.id), "amount": 1000, "currency": "EUR"}
        event = envelope(topic, data)
        validate_inbound(event)
        assert handle(received(topic, event)) == "done"
    assert (status(it), it.refunded_amount) == ("cancelled", 1000)
