"""The API takes events of CloudEvents' Python SDK in all three modes."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from typing import Any

import pytest
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent

from tests.kit.api import Api
from tests.kit.events import PAID, SHOP, order, status, told
from tests.kit.words import Order

URL = "/api/v1/events"

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _shop(settings):
    settings.ORDER_SOURCES = [SHOP]


def made(type: str, data: Any, *, source: str = "payment-service", **more: Any) -> CloudEvent:
    attributes = {
        "id": str(uuid.uuid4()),
        "type": type,
        "source": source,
        "time": dt.datetime.now(dt.UTC),
        "datacontenttype": "application/json",
    }
    return CloudEvent(attributes | more, data)


def post(api: Api, message: Any) -> Any:
    """Send what the SDK made for an HTTP client: headers and body."""
    headers = {name.title(): value for name, value in message.headers.items()}
    body = message.body if isinstance(message.body, bytes) else message.body.encode()
    return api.post(URL, body, **headers)


def test_structured_and_binary_events_of_the_sdk_are_one_event(api):
    placed = order()
    event = made(PAID, {"orderId": str(placed.id)}, subject=str(placed.id), correlationid="sdk-1")
    assert post(api, to_structured_event(event)).json()["result"] == "processed"
    assert post(api, to_binary_event(event)).json()["result"] == "repeated"
    assert status(placed) == "paid"


def test_a_shops_order_in_binary_mode_has_its_sequence(api):
    data = told("paid", id := str(uuid.uuid4()), 1)["data"]
    event = made("order.order.paid.v1", data, source=SHOP, sequence="7", subject=id)
    answer = post(api, to_binary_event(event))
    assert answer.json()["result"] == "processed", answer.content
    assert Order.objects.get(id=id).version == 7


def test_a_batch_of_the_sdks_events(api):
    """The SDK has no function for a batch, which is a list of structured events."""
    orders = [order() for _ in range(3)]
    events = [made(PAID, {"orderId": str(order.id)}) for order in orders]
    batch = [json.loads(to_structured_event(event).body) for event in events]
    answer = api.post(
        URL, json.dumps(batch).encode(), **{"Content-Type": "application/cloudevents-batch+json"}
    )
    assert [result["result"] for result in answer.json()["results"]] == ["processed"] * 3


def test_data_that_the_sdk_sends_as_bytes(api):
    placed = order()
    event = made(PAID, json.dumps({"orderId": str(placed.id)}).encode())
    answer = post(api, to_structured_event(event))
    assert answer.json()["result"] == "processed", answer.content
