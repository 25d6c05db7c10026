"""What a schema of an event or a command in describes is what its handler takes."""

from __future__ import annotations

import uuid
from typing import Any

import jsonschema
import pytest

from orders.inbound import external
from orders.inbound.payments_and_stock import MoneyData
from orders.inbound.reading import read_data
from outbox.api.fields import Nothing
from outbox.events.consuming.envelope import read_envelope
from tests.kit.events import PAID, REFUNDED, received, told, topic_of
from tests.kit.words import Name, OrderBody, Rejected, commands, find_schemas, read_schema

ORDER_ID = "0199aaaa-0000-7000-8000-000000000001"
ITEM = {"sku": "s", "name": "n", "quantity": 1, "unitAmount": 0}
MORE: dict[str, dict[str, Any]] = {
    "part_refunded": {"refundedAmount": 1, "amount": 1},
    "refunded": {"refundedAmount": 1000, "amount": 1},
}
COMMANDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "order.command.place_order.v1": (
        OrderBody,
        {"userId": ORDER_ID, "email": "a@example.com", "totalAmount": 5, "items": [ITEM]},
    ),
    "order.command.complete_order.v1": (
        commands.CompleteCommand,
        {"orderId": ORDER_ID, "trackingUrl": "https://parcels.example.com/1"},
    ),
    "order.command.cancel_order.v1": (commands.CancelCommand, {"orderId": ORDER_ID, "reason": "why"}),
    "notification.command.resend_error_emails.v1": (
        commands.ResendCommand,
        {"notificationIds": [str(uuid.uuid4())]},
    ),
    "notification.command.clean_up_sent_emails.v1": (Nothing, {}),
}
#: Values that neither may take, whatever the field.
WRONG: list[Any] = [None, [], {}, [None], True, 1.5, -1, 10**13, "x" * 3000, ""]


def validator(topic: str) -> jsonschema.Draft202012Validator:
    schema = read_schema(find_schemas()[Name("in", topic)])
    return jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )


def takes(body: Any, data: dict[str, Any], *, strict: bool) -> bool:
    try:
        read_data(body, data, strict=strict)
    except Rejected:
        return False
    return True


def assert_the_same(topic: str, body: Any, data: dict[str, Any], *, strict: bool) -> None:
    """Check that both take `data`, and that both refuse each wrong value and each missing field."""
    schema = validator(topic)
    assert schema.is_valid(data) and takes(body, data, strict=strict)
    assert set(data) <= set(schema.schema["properties"])
    for name in schema.schema["properties"]:
        without = {key: value for key, value in data.items() if key != name}
        assert schema.is_valid(without) == takes(body, without, strict=strict), (topic, name)
        for wrong in WRONG:
            spoilt = data | {name: wrong}
            if wrong is None and not strict:
                continue  # an event's null is a field that is not there
            assert schema.is_valid(spoilt) == takes(body, spoilt, strict=strict), (topic, name, wrong)


@pytest.mark.parametrize("change", [name.removeprefix("order.") for name in external.BODIES])
def test_events_of_other_systems(change):
    data = told(change, ORDER_ID, 1, **MORE.get(change, {}))["data"]
    body, statuses = external.BODIES[f"order.{change}"]
    schema = validator(topic_of(change))
    assert schema.schema["properties"]["status"]["enum"] == [str(one) for one in statuses]
    assert_the_same(topic_of(change), body, data, strict=False)


@pytest.mark.parametrize("topic", [PAID, REFUNDED])
@pytest.mark.parametrize("field", ["amount", "currency"])
def test_the_money_of_payments(topic, field):
    schema = validator(topic)
    assert schema.is_valid({"orderId": ORDER_ID, "amount": 5, "currency": "EUR"})
    assert takes(MoneyData, {"amount": 5, "currency": "EUR"}, strict=False)
    for value in ("EUR", "eur", "EU", "EURO", 1, 5, *WRONG):
        if value is None or (field, value) == ("amount", 10**13):
            continue  # a null is a field that is not there; no balance is so large
        valid = schema.is_valid({"orderId": ORDER_ID, field: value})
        assert valid == takes(MoneyData, {field: value}, strict=False), value


@pytest.mark.parametrize("topic", COMMANDS)
def test_commands(topic):
    body, data = COMMANDS[topic]
    assert_the_same(topic, body, data, strict=True)
    assert not validator(topic).is_valid(data | {"more": 1})
    assert not takes(body, data | {"more": 1}, strict=True)
    assert set(COMMANDS) == set(commands.HANDLERS)


@pytest.mark.parametrize(
    "spoilt",
    [
        {"eventId": "x"},
        {"eventId": None},
        {"eventType": ""},
        {"source": ""},
        {"data": ["x"]},
        {"version": "1"},
    ],
)
def test_the_envelope(spoilt):
    event = told("paid", ORDER_ID, 2)
    schema = validator("envelope")
    assert schema.is_valid(event) and not schema.is_valid(event | spoilt)
    read_envelope(topic=topic_of("paid"), value=received("", event).value)
    with pytest.raises(Rejected):
        read_envelope(topic=topic_of("paid"), value=received("", event | spoilt).value)
