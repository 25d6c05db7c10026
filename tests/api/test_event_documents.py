"""/api/schemas has every schema of an event, and /api/asyncapi every topic in its direction, for everyone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from django.test import Client

from tests.kit.api import Api, assert_problem
from tests.kit.events import PAID, envelope, handle, order, received, told, topic_of
from tests.kit.orders import pay_order
from tests.kit.words import (
    DomainEvent,
    find_schemas,
    version,
)

TOPICS = [name for name in find_schemas() if name.name not in ("envelope", "dlt")]


@pytest.fixture(scope="module")
def document() -> Any:
    return Client().get("/api/asyncapi").json()


def validator(document: Any, message: str) -> Any:
    schema = {"$ref": f"#/components/messages/{message}/payload", "components": document["components"]}
    return jsonschema.Draft7Validator(schema, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER)


def resolve(document: Any, reference: str) -> Any:
    assert reference.startswith("#/")
    for step in reference[2:].split("/"):
        document = document[step]
    return document


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"]
        for part in node.values():
            yield from references(part)
    elif isinstance(node, list):
        for part in node:
            yield from references(part)


def test_the_document_names_the_release_and_no_server(document):
    answer = Client().get("/api/asyncapi")
    assert answer.headers["Content-Type"] == "application/json"
    assert list(document) == [
        *("asyncapi", "info", "defaultContentType", "channels", "operations", "components"),
    ]
    assert document["asyncapi"] == "3.0.0"
    assert document["info"]["version"] == version() == Client().get("/api/schema").json()["info"]["version"]


def test_the_document_answers_get_and_head_alone():
    assert Client().head("/api/asyncapi").status_code == 200
    assert_problem(Api().request("POST", "/api/asyncapi"), 405, "method-not-allowed")


def test_every_topic_is_there_once_in_each_of_its_directions(document):
    pairs = []
    for operation in document["operations"].values():
        channel = resolve(document, operation["channel"]["$ref"])
        (message,) = (resolve(document, message["$ref"]) for message in operation["messages"])
        assert operation["messages"][0]["$ref"].startswith(operation["channel"]["$ref"] + "/messages/")
        payload = resolve(document, message["$ref"])["payload"]
        topic = payload["properties"]["eventType"].get("const", "{topic}.dlt")
        assert channel["address"] == topic
        pairs.append(({"receive": "in", "send": "out"}[operation["action"]], topic))
    assert sorted(pairs) == sorted([*TOPICS, ("out", "{topic}.dlt")]) and len(pairs) > 20
    addresses = [channel["address"] for channel in document["channels"].values()]
    assert len(addresses) == len(set(addresses))
    both = document["channels"]["order.order.paid.v1"]["messages"]
    assert set(both) == {"in", "out"} and both["in"] != both["out"]


def test_every_reference_leads_somewhere_and_every_component_is_used(document):
    used = set(references(document))
    assert len(used) > 50
    for reference in used:
        assert resolve(document, reference)
    for kind, parts in document["components"].items():
        assert {f"#/components/{kind}/{name}" for name in parts} <= used
    for channel in document["channels"].values():
        assert channel["messages"]


def test_a_payload_is_a_valid_schema_of_draft_07(document):
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft7Validator.check_schema(schema)
    for message in document["components"]["messages"].values():
        jsonschema.Draft7Validator.check_schema(message["payload"])


@pytest.mark.django_db
def test_what_is_published_fits_its_message_and_no_other(document):
    pay_order(order_id=order().id)
    assert handle(received(PAID, envelope(PAID, {}))) == "dead"
    published = list(DomainEvent.objects.all().outgoing())
    assert len(published) == 3
    for event in published:
        sent = json.loads(event.envelope)
        topic = sent["eventType"]
        message = "out.dlt" if topic.endswith(".dlt") else f"out.{topic}"
        validator(document, message).validate(sent)
        assert not validator(document, "out.order.order.cancelled.v1").is_valid(sent)
        assert not validator(document, message).is_valid(sent | {"metadata": {}})
        assert not validator(document, message).is_valid(sent | {"data": {}})
    dead = document["channels"]["dlt"]
    assert f"{PAID}.dlt" in {
        dead["address"].format(topic=topic) for topic in dead["parameters"]["topic"]["enum"]
    }


def test_what_is_taken_fits_its_message(document):
    order_id = "0199aaaa-0000-7000-8000-000000000001"
    event = told("placed", order_id, 1)
    checked = validator(document, f"in.{topic_of('placed')}")
    checked.validate(event)
    assert not checked.is_valid(event | {"eventType": "order.order.paid.v1"})
    assert not checked.is_valid(event | {"data": {"orderId": order_id}})
    validator(document, f"in.{PAID}").validate(envelope(PAID, {"orderId": order_id}))


def test_every_schema_is_listed_and_answered_without_a_token():
    lines = Client().get("/api/schemas").json()["schemas"]
    assert {(line["direction"], line["name"]) for line in lines} == set(find_schemas())
    for line in lines:
        answer = Client().get(line["url"])
        assert answer.headers["Content-Type"] == "application/schema+json"
        schema = json.loads(answer.content)
        assert schema == json.loads(find_schemas()[line["direction"], line["name"]].read_text())
        assert schema["title"] == line["title"]


@pytest.mark.parametrize(
    "name", ["in/nothing.v1", "out/payment.payment.succeeded.v1", "../settings", "in/.."]
)
def test_an_unknown_schema_is_404(name):
    assert_problem(Client().get(f"/api/schemas/{name}"), 404, "not-found")


def test_the_openapi_document_links_them():
    assert Client().get("/api/schema").json()["externalDocs"]["url"] == "/api/schemas"
