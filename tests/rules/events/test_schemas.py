"""Every topic has a JSON Schema. Published events fit theirs, and handlers take what theirs describe."""

from __future__ import annotations

import importlib
import json
import pkgutil
import uuid
from typing import Any

import jsonschema
import pytest

from events.consuming.envelope import read_envelope
from events.schemas.schemas import last_release, outdated
from local.machine import PROJECT
from notifications.events import TOPICS
from orders import events, inbound
from orders.inbound import commands, external
from orders.inbound.fallbacks import Unusable
from orders.inbound.payments import PaymentData, RefundData
from orders.inbound.reading import read_data
from tests.kit.events import PAID, REFUNDED, envelope, handle, received, told, topic_of
from tests.kit.mails import make_mail
from tests.kit.orders import (
    cancel_order,
    complete_order,
    confirm_order,
    correct_shipment,
    deliver_shipment,
    fail_payment,
    pay_order,
    place_order,
    refund_order,
    return_shipment,
    ship_order,
)
from tests.kit.schemas import validate_published, validator
from tests.kit.words import (
    HANDLERS,
    DomainEvent,
    Order,
    OrderBody,
    Outcome,
    Rejected,
    Verdict,
    claim,
    find_schemas,
    read_schema,
    settle,
)
from web.api.fields import Nothing

pytestmark = pytest.mark.django_db
SCHEMAS = {name.name: read_schema(path) for name, path in find_schemas().items() if name.direction == "out"}
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

#: Values that some field takes.
RIGHT: list[Any] = ["x", "x" * 100, "x" * 101, "x" * 201, "EUR", "EURO", "eur", "de-AT", 0, 1, 10**12]
RIGHT += [ORDER_ID, "a@example.com", "https://a.example", "ftp://a.example", "2026-01-01T00:00:00Z", [ITEM]]
RIGHT += [[ITEM | {"quantity": 0}], [ITEM | {"unitAmount": -1}], [ITEM] * 201, [ORDER_ID] * 501, False]
RIGHT += [str(status) for status in Order.Status]


def test_every_topic_has_a_schema_and_every_schema_a_topic():
    names = set(find_schemas())
    published = {event.topic for event in events.EVENTS.values()} | set(TOPICS.values())
    assert {name for direction, name in names if direction == "out"} == published | {"dlt", "envelope"}
    handled = set(HANDLERS)
    assert {name for direction, name in names if direction == "in"} == handled | {"envelope"}
    assert len({read_schema(path)["$id"] for path in find_schemas().values()}) == len(names)
    for path in find_schemas().values():
        jsonschema.Draft202012Validator.check_schema(read_schema(path))


def test_the_reference_names_each_topic():
    page = (PROJECT / "docs" / "reference" / "events.md").read_text()
    topics = {name for _, name in find_schemas()} - {"dlt", "envelope"}
    # The events of orders of other systems have the topics of ours.
    assert sorted(topic for topic in topics if f"`{topic}`" not in page) == []


def test_each_module_of_inbound_topics_is_subscribed():
    for module in pkgutil.iter_modules(inbound.__path__, f"{inbound.__name__}."):
        topics = getattr(importlib.import_module(module.name), "TOPICS", {})
        assert set(topics) - set(HANDLERS) == set(), f"add {module.name} to orders.subscriptions"


def test_no_schema_is_out_of_date():
    assert outdated() == {}


def test_what_orders_publish_fits():
    items = [{"sku": "pen", "name": "Pen", "quantity": 2, "unit_amount": 250}]
    first, second = (
        place_order(user_id=uuid.uuid4(), email="a@example.com", total_amount=500, items=items)
        for _ in range(2)
    )
    confirm_order(order_id=first.id)
    pay_order(order_id=first.id)
    complete_order(order_id=first.id, tracking_url="https://track.example/1")
    refund_order(order_id=first.id, amount=100)
    refund_order(order_id=first.id)
    fail_payment(order_id=second.id, reason_code="card_declined")
    pay_order(order_id=second.id)
    cancel_order(order_id=second.id, reason="Ann changed her mind")
    third = place_order(user_id=uuid.uuid4(), email="a@example.com", total_amount=500, items=items)
    pay_order(order_id=third.id)
    parcel = {"order_id": third.id, "shipment_id": ship_order(order_id=third.id, carrier="DHL").id}
    correct_shipment(**parcel, tracking_url="https://track.example/1")
    deliver_shipment(**parcel)
    return_shipment(**parcel)
    published = list(DomainEvent.objects.all())
    assert {event.event_type for event in published} == {event.topic for event in events.EVENTS.values()}
    assert validate_published((event.event_type, event.payload) for event in published) == len(published)


def test_the_envelope_and_a_dead_letters_event_fit():
    order = place_order(user_id=uuid.uuid4(), email="a@example.com", total_amount=500)
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    event = envelope(PAID, {"orderId": str(order.id)}, metadata=trace)
    assert handle(received(PAID, event)) == "done"
    assert handle(received(PAID, envelope(PAID, {}))) == "dead"
    assert handle(received(PAID, b"no JSON")) == "dead"
    published = list(DomainEvent.objects.all().outgoing())
    assert len(published) == 4
    for outgoing in published:
        document = json.loads(outgoing.envelope)
        validator("out", "envelope").validate(document)
        assert validate_published([(document["eventType"], document["data"])])


def test_an_emails_end_is_an_event_in_the_same_transaction_if_wanted(settings):
    settings.EMAIL_EVENTS = True
    for recipient, verdict in (("a@example.com", Verdict.PERMANENT), ("b@example.com", Verdict.ACCEPTED)):
        make_mail(recipient_email=recipient)
        (mail,) = claim(limit=1)
        outcome = Outcome(verdict, "sendgrid", code="400", text="no")
        settle([(mail, outcome)])
    dead, sent = DomainEvent.objects.order_by("position")
    assert (dead.event_type, sent.event_type) == (
        "notification.email.dead_lettered.v1",
        "notification.email.sent.v1",
    )
    for event in (dead, sent):
        validator("out", event.event_type).validate(event.payload)
        assert "example.com" not in str(event.payload) and event.payload["notificationId"] == str(
            event.aggregate_id
        )
    settings.EMAIL_EVENTS = False
    make_mail()
    (mail,) = claim(limit=1)
    settle([(mail, Outcome(Verdict.ACCEPTED))])
    assert DomainEvent.objects.count() == 2


@pytest.mark.parametrize("spoilt", [{"email": "a@example.com"}, {"totalAmount": "500"}, {"orderId": "x"}])
def test_a_schema_refuses_what_does_not_belong(spoilt):
    place_order(user_id=uuid.uuid4(), email="a@example.com", total_amount=500)
    event = DomainEvent.objects.get()
    with pytest.raises(jsonschema.ValidationError):
        validator("out", event.event_type).validate(event.payload | spoilt)


def nodes(schema):
    """Yield a schema's objects with declared properties, from the outside in."""
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for part in schema.values():
            yield from nodes(part)


def test_what_is_served_allows_the_fields_of_later_releases():
    place_order(user_id=uuid.uuid4(), email="a@example.com", total_amount=500)
    event = DomainEvent.objects.get()
    later = event.payload | {"channel": "web"}
    validator("out", event.event_type, is_strict=False).validate(later)
    with pytest.raises(jsonschema.ValidationError):
        validator("out", event.event_type).validate(later)
    closed = {
        name
        for name, schema in SCHEMAS.items()
        for node in nodes(schema)
        if node["additionalProperties"] is not True
    }
    assert closed == set()


def takes(body: Any, data: dict[str, Any], *, strict: bool) -> bool:
    try:
        values = read_data(body, data, strict=strict)
    except Rejected:
        return False
    parts = values.get("shipment", {})
    return not any(isinstance(value, Unusable) for value in (*values.values(), *parts.values()))


def assert_the_same(topic: str, body: Any, data: dict[str, Any], *, strict: bool) -> None:
    """Check that both take `data`, and that both refuse each wrong value and each missing field.

    A value that an event's fallback replaces is refused by its schema.
    """
    schema = validator("in", topic, is_strict=False)
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
def test_events_of_other_systems_are_taken_as_described(change):
    data = told(change, ORDER_ID, 1, **MORE.get(change, {}))["data"]
    body, statuses, _ = external.BODIES[f"order.{change}"]
    schema = validator("in", topic_of(change), is_strict=False)
    assert schema.schema["properties"]["status"]["enum"] == [str(status) for status in statuses]
    assert_the_same(topic_of(change), body, data, strict=False)


@pytest.mark.parametrize(("topic", "body"), [(PAID, PaymentData), (REFUNDED, RefundData)])
@pytest.mark.parametrize("field", ["amount", "currency"])
def test_the_money_of_payments_is_taken_as_described(topic, body, field):
    schema = validator("in", topic, is_strict=False)
    assert schema.is_valid({"orderId": ORDER_ID, "amount": 5, "currency": "EUR"})
    assert takes(body, {"amount": 5, "currency": "EUR"}, strict=False)
    for value in ("EUR", "eur", "EU", "EURO", 1, 5, *WRONG):
        if value is None or (topic, field, value) == (REFUNDED, "amount", 10**13):
            continue  # a null is a field that is not there; no balance is so large
        valid = schema.is_valid({"orderId": ORDER_ID, field: value})
        assert valid == takes(body, {field: value}, strict=False), value


@pytest.mark.parametrize("topic", [*COMMANDS, *sorted(external.TOPICS), PAID, REFUNDED])
def test_schemas_take_and_refuse_the_same_as_those_of_the_last_release(topic):
    """A field that is newer than the release is not compared, nor are lines that a report may have since."""
    folder = last_release()
    assert folder is not None
    old = jsonschema.Draft202012Validator(
        read_schema(folder / "in" / f"{topic}.json"),
        format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER,
    )
    new = validator("in", topic, is_strict=False)
    if topic in COMMANDS:
        data = COMMANDS[topic][1]
    elif topic in external.TOPICS:
        change = topic.split(".")[2]
        data = told(change, ORDER_ID, 1, **MORE.get(change, {}))["data"]
    else:
        data = {"orderId": ORDER_ID}
    for name in old.schema["properties"]:
        samples = [{key: value for key, value in data.items() if key != name}]
        taken_since = [[ITEM] * 201, [ITEM | {"unitAmount": -1}]] if topic in external.TOPICS else []
        samples += [data | {name: value} for value in (*WRONG, *RIGHT) if value not in taken_since]
        for sample in samples:
            assert new.is_valid(sample) == old.is_valid(sample), (name, sample.get(name))


@pytest.mark.parametrize("topic", COMMANDS)
def test_commands_are_taken_as_described(topic):
    body, data = COMMANDS[topic]
    assert_the_same(topic, body, data, strict=True)
    assert not validator("in", topic, is_strict=False).is_valid(data | {"more": 1})
    assert not takes(body, data | {"more": 1}, strict=True)
    assert set(COMMANDS) == set(commands.TOPICS)


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
def test_an_envelope_is_refused_as_described(spoilt):
    event = told("paid", ORDER_ID, 2)
    schema = validator("in", "envelope", is_strict=False)
    assert schema.is_valid(event) and not schema.is_valid(event | spoilt)
    read_envelope(topic=topic_of("paid"), value=received("", event).value)
    with pytest.raises(Rejected):
        read_envelope(topic=topic_of("paid"), value=received("", event | spoilt).value)
