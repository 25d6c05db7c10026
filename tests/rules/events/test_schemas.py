"""Every event that an order causes fits the JSON Schema of its topic, and every topic has one."""

from __future__ import annotations

import json
import uuid

import jsonschema
import pytest

from notifications.models import TOPICS
from orders import events
from tests.kit.events import PAID, envelope, handle, received
from tests.kit.mails import make_mail
from tests.kit.schemas import strict, validate_published, validator
from tests.kit.words import (
    EmailNotification,
    OutboxEvent,
    Outcome,
    Verdict,
    cancel_order,
    complete_order,
    confirm_order,
    fail_payment,
    find_schemas,
    pay_order,
    payments_and_stock,
    place_order,
    read_schema,
    refund_order,
)

pytestmark = pytest.mark.django_db
SCHEMAS = {name.name: read_schema(path) for name, path in find_schemas().items() if name.direction == "out"}


def test_every_topic_has_a_schema_and_every_schema_a_topic():
    found = set(find_schemas())
    published = {event.topic for event in events.EVENTS.values()} | set(TOPICS.values())
    assert {name for direction, name in found if direction == "out"} == published | {"dlt", "envelope"}
    handled = set(payments_and_stock.HANDLERS)
    assert {name for direction, name in found if direction == "in"} == handled | {"envelope"}
    assert len({read_schema(path)["$id"] for path in find_schemas().values()}) == len(found)
    for path in find_schemas().values():
        jsonschema.Draft202012Validator.check_schema(read_schema(path))


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
    published = list(OutboxEvent.objects.all())
    assert {event.event_type for event in published} == {event.topic for event in events.EVENTS.values()}
    assert validate_published((event.event_type, event.payload) for event in published) == len(published)


def test_the_envelope_and_a_dead_letters_event_fit():
    order = place_order(user_id=uuid.uuid4(), email="a@example.com", total_amount=500)
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    event = envelope(PAID, {"orderId": str(order.id)}, metadata=trace)
    assert handle(received(PAID, event)) == "done"
    assert handle(received(PAID, envelope(PAID, {}))) == "dead"
    assert handle(received(PAID, b"no JSON")) == "dead"
    published = list(OutboxEvent.objects.all().outgoing())
    assert len(published) == 4
    for one in published:
        document = json.loads(one.envelope)
        validator("out", "envelope").validate(document)
        assert validate_published([(document["eventType"], document["data"])])


def test_an_emails_end_is_an_event_in_the_same_transaction_if_wanted(settings):
    settings.EMAIL_EVENTS = True
    for recipient, verdict in (("a@example.com", Verdict.PERMANENT), ("b@example.com", Verdict.ACCEPTED)):
        make_mail(recipient_email=recipient)
        (mail,) = EmailNotification.objects.claim(limit=1)
        outcome = Outcome(verdict, "sendgrid", code="400", text="no")
        EmailNotification.objects.settle([(mail, outcome)])
    dead, sent = OutboxEvent.objects.order_by("position")
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
    (mail,) = EmailNotification.objects.claim(limit=1)
    EmailNotification.objects.settle([(mail, Outcome(Verdict.ACCEPTED))])
    assert OutboxEvent.objects.count() == 2


@pytest.mark.parametrize("spoilt", [{"email": "a@example.com"}, {"totalAmount": "500"}, {"orderId": "x"}])
def test_a_schema_refuses_what_does_not_belong(spoilt):
    place_order(user_id=uuid.uuid4(), email="a@example.com", total_amount=500)
    event = OutboxEvent.objects.get()
    checker = jsonschema.Draft202012Validator(
        strict(SCHEMAS[event.event_type]), format_checker=jsonschema.FormatChecker()
    )
    with pytest.raises(jsonschema.ValidationError):
        checker.validate(event.payload | spoilt)


def nodes(schema):
    """Yield a schema's objects with declared properties, from the outside in."""
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for part in schema.values():
            yield from nodes(part)


def test_what_is_served_allows_the_fields_of_later_releases():
    place_order(user_id=uuid.uuid4(), email="a@example.com", total_amount=500)
    event = OutboxEvent.objects.get()
    later = event.payload | {"channel": "web"}
    jsonschema.Draft202012Validator(SCHEMAS[event.event_type]).validate(later)
    with pytest.raises(jsonschema.ValidationError):
        validator("out", event.event_type).validate(later)
    closed = {
        name
        for name, schema in SCHEMAS.items()
        for node in nodes(schema)
        if node["additionalProperties"] is not True
    }
    assert closed == set()
