"""/api/schemas answers every schema to everyone."""

from __future__ import annotations

import json

import pytest
from django.test import Client

from tests.kit.api import assert_problem
from tests.kit.words import find_schemas


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
