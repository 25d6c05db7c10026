"""A caller of the API with a token, and what its tests check of each answer."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from django.db import connection
from django.http import HttpResponse
from django.test import Client

from tests.kit.words import ApiToken, declared_scopes, find_types


def make_token(*, scopes: Iterable[str] | None = None, **fields: Any) -> str:
    """Return a new token's secret. By default, it has all scopes."""
    secret = ApiToken.new_secret()
    granted = list(declared_scopes() if scopes is None else scopes)
    values = {"name": "test", "prefix": secret[:12], "digest": ApiToken.digest_of(secret), "scopes": granted}
    ApiToken.objects.create(**values | fields)
    return secret


class Api:
    """A client that sends JSON and one token. It sends a body of bytes unchanged."""

    def __init__(self, secret: str | None = None) -> None:
        self.headers = {"Authorization": f"Bearer {secret}"} if secret else {}

    def get(self, path: str, **headers: str) -> Any:
        return self.request("GET", path, **headers)

    def post(self, path: str, body: Any = None, *, key: str | None = None, **headers: str) -> Any:
        extra = {"Idempotency-Key": key} if key is not None else {}
        return self.request("POST", path, body, **extra, **headers)

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        # Make a client for each request, because the test client is not safe for several threads.
        client = Client(raise_request_exception=False)
        content_type = named.pop("Content-Type", "application/json")
        return client.generic(method, path, raw, content_type, headers=self.headers | named)

    def place(self, **fields: Any) -> str:
        """Place an order and return its path."""
        response = self.post("/api/v1/orders", order_body(**fields))
        assert response.status_code == 201, response.content
        location: str = response.headers["Location"]
        return location


@pytest.fixture
def api(db: None) -> Api:
    """Return a client with every scope."""
    return Api(make_token())


def order_body(**fields: Any) -> dict[str, Any]:
    """Return the body of a new order."""
    return {"user_id": str(uuid.uuid4()), "email": "alice@example.com", "total_amount": 10_000} | fields


#: The tables that a request can write.
TABLES = (
    "orders",
    "refunds",
    "shipments",
    "email_notifications",
    "outbox_events",
    "idempotency_keys",
    "processed_events",
    "inbound_dead_letters",
)
_COUNTS = " UNION ALL ".join(
    f"SELECT '{table}', count(*), coalesce(sum(hashtext(t::text)), 0) FROM {table} AS t" for table in TABLES
)


def row_counts() -> Mapping[str, tuple[int, int]]:
    """Return the number of rows of each table that a request can write, and a checksum of them."""
    with connection.cursor() as cursor:
        cursor.execute(_COUNTS)
        return {table: (count, checksum) for table, count, checksum in cursor.fetchall()}


def assert_problem(response: HttpResponse, status: int, slug: str) -> dict[str, Any]:
    """Check that an answer is the problem, and return it."""
    assert response.status_code == status, response.content
    assert response.headers["Content-Type"] == "application/problem+json"
    document: dict[str, Any] = json.loads(response.content)
    assert document["type"] == f"urn:orderpost:problem:{slug}"
    assert document["status"] == status
    declared = find_types()[slug]
    assert (document["status"], document["title"]) == (declared.status, declared.title)
    assert document["help"].endswith(f"/api/problems/{slug}") and document["detail"]
    assert response.headers["X-Correlation-ID"]
    if status == 400:
        assert document["errors"] and all(
            e["pointer"].startswith("#") and e["detail"] for e in document["errors"]
        )
    return document


ID = uuid.UUID("01890000-0000-7000-8000-000000000001")
SHIPMENT_ID = uuid.UUID("01890000-0000-7000-8000-000000000002")


ENDPOINTS = [
    ("GET", "/api/v1/orders", "orders:read"),
    ("POST", "/api/v1/orders", "orders:write"),
    ("GET", f"/api/v1/orders/{ID}", "orders:read"),
    *[
        ("POST", f"/api/v1/orders/{ID}/{action}", "orders:write")
        for action in ("pay", "confirm", "complete", "cancel", "refund")
    ],
    ("POST", f"/api/v1/orders/{ID}/shipments", "orders:write"),
    ("GET", f"/api/v1/orders/{ID}/shipments/{SHIPMENT_ID}", "orders:read"),
    ("PATCH", f"/api/v1/orders/{ID}/shipments/{SHIPMENT_ID}", "orders:write"),
    *[
        ("POST", f"/api/v1/orders/{ID}/shipments/{SHIPMENT_ID}/{action}", "orders:write")
        for action in ("delivered", "returned")
    ],
    ("GET", f"/api/v1/orders/{ID}/notifications", "orders:read"),
    ("GET", f"/api/v1/orders/{ID}/events", "orders:read"),
    ("GET", f"/api/v1/orders/{ID}/timeline", "orders:read"),
    ("GET", "/api/v1/notifications", "notifications:read"),
    ("GET", f"/api/v1/notifications/{ID}", "notifications:read"),
    ("POST", f"/api/v1/notifications/{ID}/resend", "notifications:write"),
    ("POST", f"/api/v1/notifications/{ID}/discard", "notifications:write"),
    ("POST", f"/api/v1/notifications/{ID}/copies", "notifications:write"),
    ("POST", "/api/v1/events", "events:write"),
]


def template(path: str, form: str) -> str:
    """Return the path of an endpoint with its ids as `form` writes them: `<str:%s>` or `{%s}`."""
    return path.replace(str(ID), form % "id").replace(str(SHIPMENT_ID), form % "shipment_id")
