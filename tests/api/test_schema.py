"""The OpenAPI document says what the API does, and the reference page needs nobody else."""

from __future__ import annotations

import re
import threading
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from django.core.management import call_command
from django.test import Client, RequestFactory
from django.urls import resolve
from drf_spectacular.generators import SchemaGenerator

from tests.kit.api import ENDPOINTS, order_body, template
from tests.kit.words import version
from web.api import schema

jsonschema = pytest.importorskip("jsonschema")


@pytest.fixture(scope="module")
def document():
    return Client().get("/api/schema").json()


def test_the_document_is_valid_and_made_without_a_warning(tmp_path):
    call_command("spectacular", validate=True, fail_on_warn=True, file=str(tmp_path / "schema.yaml"))


def test_the_document_is_openapi_3_1_with_every_operation_and_its_token(document):
    assert document["openapi"].startswith("3.1")
    assert document["info"]["version"] == version()
    operations = {
        (method.upper(), path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert operations.keys() == {(method, template(path, "{%s}")) for method, path, _ in ENDPOINTS}
    assert all(operation["security"] == [{"token": []}] for operation in operations.values())
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    for (method, path), operation in operations.items():
        names = {parameter["name"] for parameter in operation["parameters"]}
        assert ("Idempotency-Key" in names) == (method != "GET" and path != "/api/v1/events")
        for code in ("400", "401", "403", "503"):
            assert list(operation["responses"][code]["content"]) == ["application/problem+json"]
        success = next(answer for code, answer in operation["responses"].items() if code.startswith("2"))
        assert "X-Correlation-ID" in success["headers"]
    placed = operations["POST", "/api/v1/orders"]["responses"]["201"]
    assert {"Location", "Idempotency-Replayed"} <= set(placed["headers"])


@pytest.mark.parametrize(("method", "path", "scope"), ENDPOINTS)
def test_an_operation_has_the_scope_and_the_query_that_its_view_checks(document, method, path, scope):
    operation = document["paths"][template(path, "{%s}")][method.lower()]
    assert scope in operation["description"]
    query = {parameter["name"] for parameter in operation["parameters"] if parameter["in"] == "query"}
    view = resolve(path).func.cls(request=RequestFactory().generic(method, path))
    assert query == view.query_serializer().fields.keys()


def test_the_document_is_built_once_in_a_process_whatever_the_query_says_and_whoever_asks(monkeypatch):
    built = []
    build = SchemaGenerator.get_schema

    def counted(generator, request=None, public=False):
        built.append(1)
        return build(generator, request, public)

    monkeypatch.setattr(SchemaGenerator, "get_schema", counted)
    monkeypatch.setattr(schema, "_document", b"")
    answers = []
    at_once = [
        threading.Thread(target=lambda query=query: answers.append(Client().get(f"/api/schema{query}")))
        for query in ("", "?lang=de", "?version=9", "")
    ]
    for thread in at_once:
        thread.start()
    for thread in at_once:
        thread.join()
    assert len(built) == 1
    assert [answer.status_code for answer in answers] == [200] * 4
    assert len({answer.content for answer in answers}) == 1
    assert answers[0].headers["Content-Type"] == "application/json"
    assert answers[0].headers["Content-Disposition"] == 'inline; filename="orderpost.json"'


def _validator(document, name):
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.django_db(transaction=True)
def test_what_the_api_answers_is_what_the_document_says(api, document):
    path = api.place(items=[{"sku": "s", "name": "n", "quantity": 1, "unit_amount": 1}])
    api.post(f"{path}/pay")
    answers = {
        "Order": api.get(path),
        "OrderPage": api.get("/api/v1/orders"),
        "EventHotPage": api.get(f"{path}/events"),
        "NotificationHotPage": api.get(f"{path}/notifications"),
        "NotificationPage": api.get("/api/v1/notifications"),
        "ValidationProblem": api.post("/api/v1/orders", {}),
        "ChangeProblem": api.post(f"{path}/pay"),
        "Problem": api.get("/api/v1/orders/x"),
    }
    for name, response in answers.items():
        _validator(document, name).validate(response.json())
        properties = set(document["components"]["schemas"][name]["properties"])
        assert set(response.json()) <= properties, name


def test_the_document_takes_the_bodies_that_the_api_takes_and_refuses_some_that_it_refuses(document):
    validator = _validator(document, "OrderBody")
    validator.validate(order_body(items=[{"sku": "s", "name": "n", "quantity": 1, "unit_amount": 0}]))
    for wrong in (
        {"total_amount": 0},
        {"total_amount": "1"},
        {"user_id": 1},
        {"items": [{}]},
        {"name": None},
    ):
        assert not validator.is_valid(order_body(**wrong))


def _parameter(document, path, name, *, method="get"):
    (parameter,) = (
        parameter for parameter in document["paths"][path][method]["parameters"] if parameter["name"] == name
    )
    return parameter["schema"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("key", ["", "k" * 256, "a b", "ä", "\x7f", "!~", "a,b", "k" * 255])
def test_an_idempotency_key_is_documented_as_it_is_read(api, document, key):
    documented = _parameter(document, "/api/v1/orders", "Idempotency-Key", method="post")
    answer = api.post("/api/v1/orders", order_body(), key=key)
    assert jsonschema.Draft202012Validator(documented).is_valid(key) == (answer.status_code == 201)


@pytest.mark.django_db(transaction=True)
def test_a_cursor_is_documented_as_the_api_makes_it_and_as_it_reads_it(api, document):
    paths = [api.place() for _ in range(2)]
    for path in paths:
        api.post(f"{path}/pay")
    api.post(f"{paths[0]}/confirm")
    api.post(f"{paths[0]}/complete")
    id = paths[0].rpartition("/")[2]
    for path in (
        "/api/v1/orders",
        "/api/v1/notifications",
        "/api/v1/orders/{id}/events",
        "/api/v1/orders/{id}/notifications",
    ):
        documented = jsonschema.Draft202012Validator(_parameter(document, path, "cursor"))
        url = path.format(id=id)
        page = api.get(f"{url}?page_size=1").json()
        cursor = parse_qs(urlsplit(page["next"]).query)["cursor"][0]
        assert documented.is_valid(cursor)
        for wrong in ("0", "n", "\x00", cursor[1:], f"x{cursor[1:]}", f"{cursor}.0", f"{cursor}\x01"):
            assert not documented.is_valid(wrong)
            assert api.get(f"{url}?{urlencode({'cursor': wrong})}").status_code == 400


@pytest.mark.parametrize(
    ("path", "name"), [("/api/v1/orders", "email"), ("/api/v1/notifications", "recipient_email")]
)
def test_an_address_in_a_query_is_documented_as_one(document, path, name):
    assert _parameter(document, path, name)["format"] == "email"


def test_the_document_asks_nothing_of_the_members_of_a_list_of_events(document):
    bodies = document["paths"]["/api/v1/events"]["post"]["requestBody"]["content"]
    lists = [bodies["application/json"]["schema"]["oneOf"][1]]
    lists.append(bodies["application/cloudevents-batch+json"]["schema"])
    for several in lists:
        assert jsonschema.Draft202012Validator(several).is_valid([{}, 5])


def test_the_headers_of_a_cloud_event_are_described_together(document):
    operation = document["paths"]["/api/v1/events"]["post"]
    assert not [header for header in operation["parameters"] if header["name"].startswith("ce-")]
    for name in ("specversion", "type", "id", "source", "time", "subject", "sequence"):
        assert f"`ce-{name}" in operation["description"]


@pytest.mark.django_db(transaction=True)
def test_a_method_that_the_document_lacks_is_405_whatever_the_query_says(api):
    assert api.post("/api/v1/notifications?cursor=0").status_code == 405


def test_the_reference_page_loads_nothing_from_elsewhere(settings, db):
    assert settings.DEBUG is False
    page = Client().get("/api/docs")
    html = page.content.decode()
    assert page.status_code == 200
    loaded = re.findall(r'(?:src|href)="([^"]+)"', html)
    assert loaded and all(address.startswith("/") for address in loaded)
    for address in loaded:
        response = Client().get(address)
        assert response.status_code == 200
        response.close()
    assert not re.findall(r"https?://", html)
    script = Client().get("/api/docs?script=").content.decode()
    assert "validatorUrl" in script and "/api/schema" in script and not re.findall(r"https?://", script)
