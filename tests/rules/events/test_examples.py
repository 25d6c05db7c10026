"""The programs of examples/ publish what the served schemas describe and orderpost takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import redis

from local.machine import PROJECT
from tests.kit.events import envelope, give, handle, order, received, status, topic_of
from tests.kit.examples import load
from tests.kit.orders import cancel_order
from tests.kit.schemas import validate_inbound
from tests.kit.words import DomainEvent, EmailNotification, Order

services = load("services")


@pytest.mark.django_db
def test_the_payment_service_captures_and_returns_the_amount_in_the_orders_currency():
    it = order(currency="EUR")
    for handler, published in ((services.capture, "placed"), (services.give_back, "cancelled")):
        if published == "cancelled":
            cancel_order(order_id=it.id)
        told = DomainEvent.objects.get(event_type=f"order.order.{published}.v1")
        topic, data = handler(told.payload)
        assert data == {"orderId": str(it.id), "amount": 1000, "currency": "EUR"}
        event = envelope(topic, data)
        validate_inbound(event)
        assert handle(received(topic, event)) == "done"
    assert (status(it), it.refunded_amount) == ("cancelled", 1000)


@pytest.mark.django_db
@pytest.mark.parametrize("options", [[], ["--late"]])
def test_the_example_shops_events_make_an_order_and_its_mails(settings, valkey_url, options):
    settings.ORDER_SOURCES = ["example-shop"]
    subprocess.run(
        [sys.executable, "examples/shop.py", *options],
        cwd=PROJECT,
        env=os.environ | {"REDIS_URL": valkey_url},
        check=True,
        capture_output=True,
    )
    topics = [topic_of(change) for change in ("completed", "paid", "placed")]  # not as they were told
    with redis.Redis.from_url(valkey_url) as client:
        events = [json.loads(fields[b"value"]) for topic in topics for _, fields in client.xrange(topic)]
    assert len(events) == 3
    for event in events:
        validate_inbound(event)
        assert give(event) == "done"
    order = Order.objects.get()
    assert (order.source, order.status, order.version) == ("example-shop", "completed", 3)
    mails = EmailNotification.objects.order_by("event_type").values_list("event_type", flat=True)
    assert list(mails) == ["order.completed", "order.paid"]
