"""Clients rely on each answer's status, problem type, fields and headers.

A new field or header may be added here. To remove or rename one breaks a client.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from orders.api.serializers import OrderSerializer
from tests.kit.api import Api, make_token, order_body
from tests.kit.mails import make_mail

pytestmark = pytest.mark.django_db(transaction=True)

ORDERS, MAILS = "/api/v1/orders", "/api/v1/notifications"
NONE = uuid.UUID("00000000-0000-4000-8000-000000000001")

ORDER = (*(name for name, field in OrderSerializer().fields.items() if field.required), "email_language")
#: The fields that a release had.
RELEASED = {
    *("id", "user_id", "email", "name", "reference", "status", "version", "total_amount", "refunded_amount"),
    *("currency", "locale", "items", "created_at", "updated_at"),
}
MAIL = (
    *("id", "order_id", "event_type", "recipient_email", "subject", "status", "retry_count", "max_retries"),
    *("last_error", "next_attempt_at", "provider", "provider_message_id"),
    *("created_at", "sent_at", "delivered_at", "bounced_at", "resend_of", "shop_copy_of"),
    *("profile", "failed_at", "ended_by"),
)
PAGE = ("next", "previous", "results")
PROBLEM = ("type", "title", "status", "detail", "help")
EVERY_HEADER = {
    "Cache-Control": "no-store",
    "Content-Length": r"\d+",
    "Content-Security-Policy": "default-src 'self'; .*",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": ".*",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Correlation-ID": "[0-9a-f]{32}",
    "X-Frame-Options": "SAMEORIGIN",
}
LOCATION = {"Location": r"/api/v1/orders/[0-9a-f-]{36}"}
REPLAYED = {"Idempotency-Replayed": "true"}
BEARER = {"WWW-Authenticate": "Bearer"}
JSON_ONLY = {"Accept-Post": "application/json"}


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A request and what its answer must have. `type` is the problem's; `allow` the header Allow, if any."""

    request: Callable[[Api], Any]
    status: int
    fields: tuple[str, ...]
    allow: str | None = "POST"
    type: str | None = None
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


def problem(
    type: str,
    status: int,
    request: Callable[[Api], Any],
    *members: str,
    allow: str | None = "POST",
    **headers,
) -> Case:
    """Return the case of a refusal; `members` follow the fields of every problem."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Case(request, status, PROBLEM + members, allow, type, named)


def paid(api: Api) -> str:
    """Return the path of a paid order."""
    path = api.place()
    assert api.post(f"{path}/pay").status_code == 200
    return path


def twice(api: Api, path: str, body: Any = None) -> Any:
    api.post(path, body, key="k")
    return api.post(path, body, key="k")


def mail_path(status: str, action: str = "") -> str:
    return f"{MAILS}/{make_mail(status=status).id}{action}"


READ, LIST = "GET, HEAD", "GET, HEAD, POST"
ANSWERS = {
    "placed": Case(lambda api: api.post(ORDERS, order_body()), 201, ORDER, LIST, headers=LOCATION),
    "placed again": Case(
        lambda api: twice(api, ORDERS, order_body()), 201, ORDER, LIST, headers=LOCATION | REPLAYED
    ),
    "paid": Case(lambda api: api.post(f"{api.place()}/pay"), 200, ORDER),
    "paid again": Case(lambda api: twice(api, f"{api.place()}/pay"), 200, ORDER, headers=REPLAYED),
    "refunded in part": Case(lambda api: api.post(f"{paid(api)}/refund", {"amount": 1}), 200, ORDER),
    "order": Case(lambda api: api.get(api.place()), 200, ORDER, READ),
    "orders": Case(lambda api: api.get(ORDERS), 200, PAGE, LIST),
    "an order's events": Case(lambda api: api.get(f"{paid(api)}/events"), 200, (*PAGE, "since"), READ),
    "an order's e-mails": Case(
        lambda api: api.get(f"{paid(api)}/notifications"), 200, (*PAGE, "since"), READ
    ),
    "e-mails": Case(lambda api: api.get(MAILS), 200, PAGE, READ),
    "e-mail": Case(lambda api: api.get(mail_path("sent")), 200, MAIL, READ),
    "e-mail sent again": Case(lambda api: api.post(mail_path("dead_lettered", "/resend")), 202, MAIL),
    "e-mail given up": Case(lambda api: api.post(mail_path("pending", "/discard")), 200, MAIL),
    "e-mail sent again, again": Case(
        lambda api: twice(api, mail_path("dead_lettered", "/resend")), 202, MAIL, headers=REPLAYED
    ),
}
PROBLEMS = {
    "no JSON": problem("malformed", 400, lambda api: api.post(ORDERS, b"{"), "errors", allow=LIST),
    "a bad value": problem("validation", 400, lambda api: api.post(ORDERS, {}), "errors", allow=LIST),
    "a bad key": problem("validation", 400, lambda api: api.post(f"{api.place()}/pay", key="a b"), "errors"),
    "a bad query": problem("validation", 400, lambda api: api.get(f"{MAILS}?x=1"), "errors", allow=READ),
    "no token": problem("unauthenticated", 401, lambda _: Api().get(ORDERS), allow=LIST, **BEARER),
    "no token, bad body": problem(
        "unauthenticated", 401, lambda _: Api().post(ORDERS, b"{"), allow=LIST, **BEARER
    ),
    "unknown token, bad method": problem(
        "unauthenticated", 401, lambda _: Api("op_x").request("DELETE", ORDERS), allow=LIST, **BEARER
    ),
    "another scope": problem(
        "forbidden",
        403,
        lambda _: Api(make_token(scopes=["orders:read"])).post(ORDERS, {}),
        "scope",
        allow=LIST,
    ),
    "no such order": problem("not-found", 404, lambda api: api.post(f"{ORDERS}/{NONE}/pay", key="k")),
    "no such address": problem("not-found", 404, lambda api: api.get("/api/v1/nothing"), allow=None),
    "another method": problem("method-not-allowed", 405, lambda api: api.get(f"{ORDERS}/{NONE}/pay")),
    "a change that is not allowed": problem(
        "invalid-transition",
        409,
        lambda api: api.post(f"{paid(api)}/pay"),
        *("current_status", "allowed_statuses", "allowed_actions"),
    ),
    "a refund of too much": problem(
        "refund-exceeds-balance", 409, lambda api: api.post(f"{paid(api)}/refund", {"amount": 10_001}), "left"
    ),
    "an e-mail that was sent": problem(
        "not-resendable", 409, lambda api: api.post(mail_path("sent", "/resend")), "current_status", "until"
    ),
    "an e-mail that cannot be given up": problem(
        "not-discardable", 409, lambda api: api.post(mail_path("sent", "/discard")), "current_status", "until"
    ),
    "a body in chunks": problem(
        "length-required", 411, lambda api: api.post(f"{ORDERS}/1/pay", b"", Transfer_Encoding="chunked")
    ),
    "a body that is too large": problem(
        "too-large", 413, lambda api: api.post(ORDERS, b" " * 1_000_001), allow=LIST
    ),
    "a body of another type": problem(
        "unsupported-media-type",
        415,
        lambda api: api.post(ORDERS, b"x=1", Content_Type="application/x-www-form-urlencoded"),
        allow=LIST,
        **JSON_ONLY,
    ),
    "a key of another request": problem(
        "idempotency-key-reused",
        422,
        lambda api: [api.post(ORDERS, order_body(), key="k") for _ in range(2)][1],
        allow=LIST,
    ),
}


def test_an_order_keeps_the_fields_that_a_release_had():
    assert set(ORDER) >= RELEASED


@pytest.mark.parametrize("name", [*ANSWERS, *PROBLEMS])
def test_an_answer_has_its_status_type_fields_and_headers(api, name):
    case = (ANSWERS | PROBLEMS)[name]
    response = case.request(api)
    shown = response.json()
    assert response.status_code == case.status, shown
    assert tuple(shown) == case.fields
    if case.type:
        assert (shown["type"], shown["status"]) == (f"urn:orderpost:problem:{case.type}", case.status)
    expected = EVERY_HEADER | case.headers | ({"Allow": case.allow} if case.allow else {})
    expected["Content-Type"] = r"application/problem\+json" if case.type else "application/json"
    assert set(response.headers) == set(expected)
    for header, pattern in expected.items():
        assert re.fullmatch(pattern, response.headers[header]), header


def test_a_fault_has_a_pointer_a_detail_and_its_place_outside_the_body(api):
    def faults(response: Any) -> list[dict[str, str]]:
        errors = response.json()["errors"]
        assert all(fault.pop("detail") for fault in errors)
        return list(errors)

    assert faults(api.post(ORDERS, b"{")) == [{"pointer": "#"}]
    assert faults(api.post(ORDERS, order_body(total_amount=0))) == [{"pointer": "#/total_amount"}]
    assert faults(api.get(f"{ORDERS}?status=x")) == [{"pointer": "#/status", "in": "query"}]
    assert faults(api.post(ORDERS, order_body(), key="a b")) == [
        {"pointer": "#/Idempotency-Key", "in": "header"}
    ]


@pytest.mark.parametrize("tail", ["", "/events", "/notifications"])
def test_a_head_has_the_headers_of_a_get_and_no_body(api, tail):
    path = api.place() + tail
    read, head = api.get(path), api.request("HEAD", path)
    assert (head.status_code, head.content) == (200, b"")
    assert set(head.headers) == set(read.headers)
    assert head.headers["Content-Length"] == read.headers["Content-Length"]
    assert api.request("HEAD", f"{ORDERS}/{NONE}/pay").status_code == 405


def test_times_are_utc_with_microseconds(api):
    shown = api.get(api.place()).json()
    for name in ("created_at", "updated_at"):
        assert dt.datetime.fromisoformat(shown[name]).utcoffset() == dt.timedelta(0)
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{6})?(Z|\+00:00)", shown[name])
