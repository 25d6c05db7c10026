"""The programs of examples/ publish what the served schemas describe and orderpost takes."""

from __future__ import annotations

import base64
import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import requests
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from local.machine import PROJECT
from tests.kit.api import make_token
from tests.kit.events import envelope, give, handle, order, received, status, topic_of
from tests.kit.examples import load
from tests.kit.http import run, serve
from tests.kit.orders import cancel_order
from tests.kit.schemas import validate_inbound
from tests.kit.waiting import PATIENCE, replace_time
from tests.kit.words import (
    DomainEvent,
    EmailNotification,
    Order,
)

saleor, services = load("saleor_adapter"), load("services")
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
KID = "saleor-key"
#: The result of the adapter's query for an order (the types are those of Saleor's GraphQL schema).
ORDER = {
    "id": "T3JkZXI6YzhmY2FjMTgtMWQ5Yy00NWRkLTgxMGYtMGIzMTJiYTNjZDYz",
    "number": "1001",
    "created": "2026-11-20T09:30:00.204202+00:00",
    "languageCodeEnum": "PT_BR",
    "userEmail": "ann@example.com",
    "status": "UNFULFILLED",
    "user": {"id": "VXNlcjoxMjA="},
    "billingAddress": {"firstName": "Ann", "lastName": "Silva"},
    "total": {"gross": {"amount": 98.4, "currency": "EUR"}},
    "totalCharged": {"amount": 0.0, "currency": "EUR"},
    "totalRefunded": {"amount": 0.0, "currency": "EUR"},
    "lines": [
        {
            "id": "T3JkZXJMaW5lOjkzYTFjZGMx",
            "productSku": "TEA-1",
            "productName": "Green tea",
            "variantName": "100 g",
            "quantity": 2,
            "unitPrice": {"gross": {"amount": 44.2, "currency": "EUR"}},
        }
    ],
    "fulfillments": [],
    "transactions": [],
}


def money(amount: float, currency: str = "EUR") -> dict[str, Any]:
    return {"amount": amount, "currency": currency}


def refund(amount: float, at: str, currency: str = "EUR") -> dict[str, Any]:
    return {"events": [{"type": "REFUND_SUCCESS", "createdAt": at, "amount": money(amount, currency)}]}


def payload(name: str, issued_at: str = "2026-11-20T09:30:01.000000+00:00", **fields: Any) -> dict[str, Any]:
    return {"__typename": name, "issuedAt": issued_at, "order": copy.deepcopy(ORDER) | fields}


def encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def sign(body: bytes, *, key: rsa.RSAPrivateKey = KEY, **header: Any) -> str:
    """Sign as Saleor does: RS256, the payload neither encoded nor in the signature."""
    fields = {"alg": "RS256", "b64": False, "crit": ["b64"], "kid": KID, "typ": "JWT"} | header
    head = encode(json.dumps(fields).encode())
    return f"{head}..{encode(key.sign(f'{head}.'.encode() + body, padding.PKCS1v15(), SHA256()))}"


def public_keys() -> dict[str, Any]:
    numbers = KEY.public_key().public_numbers()
    modulus, exponent = (
        encode(number.to_bytes(256, "big").lstrip(b"\0")) for number in (numbers.n, numbers.e)
    )
    return {"keys": [{"kty": "RSA", "use": "sig", "alg": "RS256", "kid": KID, "n": modulus, "e": exponent}]}


class World:
    """Saleor's keys and orderpost's endpoint on one address, and the adapter between them."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.key_requests = 0
        self.status, self.keys_status, self.keys = 200, 200, public_keys()
        self.url = ""
        self.adapter: Any = None

    def answer(self, path: str, headers: Any, body: Any) -> tuple[int, Any, dict[str, str]]:
        if path == "/.well-known/jwks.json":
            self.key_requests += 1
            return self.keys_status, self.keys, {}
        assert path == "/api/v1/events" and headers["Authorization"] == "Bearer secret"
        if self.status == 0:
            raise ConnectionResetError
        if self.status != 200:
            return self.status, {"detail": "the reason"}, {}
        is_repeated = body["eventId"] in [event["eventId"] for event in self.events]
        self.events.append(body)
        return 200, {"event_id": body["eventId"], "result": "repeated" if is_repeated else "processed"}, {}

    def send(self, body: dict[str, Any], **header: Any) -> requests.Response:
        raw = json.dumps(body).encode()
        return self.post(raw, sign(raw, **header))

    def post(self, raw: bytes, signature: str | None) -> requests.Response:
        headers = {"Saleor-Event": "order_created", "Saleor-Domain": "shop.example.com"}
        if signature is not None:
            headers["Saleor-Signature"] = signature
        return requests.post(self.url, raw, headers=headers, timeout=PATIENCE)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    with serve(world.answer) as url:
        world.adapter = saleor.Adapter(
            saleor_url=f"{url}/", orderpost_url=url, token="secret", source="saleor"
        )
        with run(saleor.make_server(world.adapter, port=0)) as world.url:
            yield world


PART = {
    "totalRefunded": money(10),
    "transactions": [refund(4, "2026-11-22T00:00:00Z"), refund(6, "2026-11-21T00:00:00Z")],
}
MORE = {"totalRefunded": money(120), "transactions": [refund(120, "2026-11-22T00:00:00Z")]}
FULL = {"totalRefunded": money(98.4), "transactions": [refund(98.4, "2026-11-22T00:00:00Z")]}
PARCEL = {"fulfillments": [{"trackingNumber": "42"}, {"trackingNumber": "https://parcels.example.com/42"}]}
#: Saleor's event, the order's fields -> our change, the fields of `data` that depend on it
CASES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("OrderCreated", {}, "placed", {"status": "pending"}),
    ("OrderFullyPaid", {"totalCharged": money(98.4)}, "paid", {"status": "paid"}),
    ("OrderConfirmed", {}, "confirmed", {"status": "confirmed"}),
    ("OrderFulfilled", {}, "completed", {"status": "completed"}),
    (
        "OrderFulfilled",
        PARCEL | PART,
        "completed",
        {"status": "part_refunded", "trackingUrl": "https://parcels.example.com/42", "refundedAmount": 1000},
    ),
    ("OrderCancelled", {"status": "CANCELED"}, "cancelled", {"status": "cancelled", "wasPaid": False}),
    ("OrderCancelled", {"totalCharged": money(98.4)}, "cancelled", {"status": "cancelled", "wasPaid": True}),
    ("OrderCancelled", FULL, "cancelled", {"wasPaid": True, "refundedAmount": 9840}),
    (
        "OrderRefunded",
        PART,
        "part_refunded",
        {"status": "part_refunded", "amount": 400, "refundedAmount": 1000},
    ),
    ("OrderRefunded", FULL, "refunded", {"status": "refunded", "amount": 9840, "refundedAmount": 9840}),
    ("OrderRefunded", MORE, "refunded", {"status": "refunded", "amount": 9840, "refundedAmount": 9840}),
    ("OrderRefunded", FULL | {"status": "CANCELED"}, "refunded", {"status": "cancelled", "amount": 9840}),
    ("OrderRefunded", PART | {"status": "CANCELED"}, "part_refunded", {"status": "cancelled", "amount": 400}),
    ("OrderRefunded", {"totalRefunded": money(9)}, "part_refunded", {"amount": 900}),
]


@pytest.mark.django_db
@pytest.mark.parametrize(("name", "fields", "change", "expected"), CASES)
def test_each_event_becomes_one_that_orderpost_takes(settings, world, name, fields, change, expected):
    settings.ORDER_SOURCES = ["saleor"]
    assert world.send(payload(name, **fields)).status_code == 200
    (event,) = world.events
    assert event["eventType"] == f"order.order.{change}.v1"
    assert event["data"].items() >= expected.items()
    validate_inbound(event)
    assert give(event) == "done"
    order = Order.objects.get()
    assert (order.status, order.total_amount, order.reference) == (event["data"]["status"], 9840, "1001")
    assert (order.email, order.name, order.locale, order.currency) == (
        "ann@example.com",
        "Ann Silva",
        "pt-br",
        "EUR",
    )
    item = {"sku": "TEA-1", "name": "Green tea 100 g", "quantity": 2, "unit_amount": 4420}
    assert order.items == [item]


@pytest.mark.django_db
def test_an_order_of_one_request_ends_as_confirmed_in_whatever_order_its_events_come(settings, world):
    settings.ORDER_SOURCES = ["saleor"]
    for name in ("OrderConfirmed", "OrderCreated", "OrderFullyPaid"):
        world.send(payload(name))
    for event in world.events:
        assert give(event) == "done"
    assert Order.objects.get().status == "confirmed"
    assert EmailNotification.objects.filter(event_type="order.paid").count() == 1


def test_a_repeated_delivery_is_a_repeated_event(world):
    answers = [world.send(payload("OrderFullyPaid")) for _ in range(2)]
    assert [answer.text for answer in answers] == ["processed", "repeated"]
    assert world.events[0] == world.events[1]
    world.send(payload("OrderFullyPaid", issued_at="2026-11-20T09:30:02+00:00"))
    world.send(payload("OrderConfirmed"))
    assert len({event["eventId"] for event in world.events}) == 3


@pytest.mark.parametrize("name", ["OrderUpdated", "OrderPaid", "OrderFullyRefunded", "ProductUpdated"])
def test_other_events_are_answered_and_not_passed_on(world, name):
    answer = world.send(payload(name))
    assert (answer.status_code, answer.text, world.events) == (200, "ignored", [])


def test_a_body_that_saleor_did_not_sign_is_refused(world):
    raw = json.dumps(payload("OrderCreated")).encode()
    stranger = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    good = sign(raw)
    head, _, tail = good.split(".")
    wrong = [
        None,
        "",
        "nonsense",
        "[]..",
        sign(raw + b" "),
        sign(raw, key=stranger),
        sign(raw, kid="unknown"),
        sign(raw, kid=["list"]),
        sign(raw, alg="none"),
        sign(raw, alg="HS256"),
        sign(raw, b64=True),
        sign(raw, crit=["b64", "more"]),
        f"{head}..",
        f"{head}.{tail}",
        f"{head}.{encode(raw)}.{tail}",
    ]
    assert [world.post(raw, signature).status_code for signature in wrong] == [401] * len(wrong)
    assert world.events == []
    assert world.post(raw, good).status_code == 200
    assert world.key_requests == 1, "strangers cannot make it ask Saleor for each request"


@pytest.mark.parametrize(
    ("status", "expected"), [(422, 422), (400, 422), (401, 503), (429, 503), (503, 503), (0, 503)]
)
def test_saleor_repeats_unless_orderpost_refused_the_event(world, capfd, status, expected):
    world.status = status
    answer = world.send(payload("OrderCreated"))
    assert answer.status_code == expected
    world.status = 200
    assert world.send(payload("OrderCreated")).text == "processed"
    if status:
        assert "the reason" in answer.text and "'order_created': " in capfd.readouterr().err


def test_saleor_repeats_if_its_keys_cannot_be_read(world):
    world.keys_status = 500
    assert world.send(payload("OrderCreated")).status_code == 503
    world.keys_status = 200
    for unreadable in ([], {"keys": [{"kid": KID}]}, {"keys": [{"kid": KID, "e": "AQAB", "n": "AA"}]}):
        world.keys = unreadable
        assert world.send(payload("OrderCreated")).status_code == 503
    world.keys = public_keys()
    assert world.send(payload("OrderCreated")).status_code == 200


def test_a_key_that_saleor_no_longer_has_counts_no_more(world, monkeypatch):
    assert world.send(payload("OrderCreated")).status_code == 200
    world.keys = {"keys": [public_keys()["keys"][0] | {"kid": "next"}]}
    replace_time(monkeypatch, saleor, monotonic=lambda: world.adapter.keys_read_at + 61)
    assert world.send(payload("OrderCreated"), kid="next").status_code == 200
    monkeypatch.undo()
    assert world.send(payload("OrderCreated")).status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        [],
        {"__typename": "OrderCreated"},
        payload("OrderCreated", userEmail=None),
        payload("OrderCreated", total={"gross": money(1.234)}),
        payload("OrderCreated", total={"gross": money(float("nan"))}),
        payload("OrderRefunded", totalRefunded=money(10, "USD")),
        payload("OrderRefunded", transactions=[refund(4, "2026-11-22T00:00:00Z", "USD")]),
        payload("OrderCreated", issued_at="yesterday"),
    ],
)
def test_an_unusable_payload_is_refused_once(world, body):
    assert world.send(body).status_code == 422
    assert world.events == []


def test_a_body_over_the_limit_or_without_its_length_is_refused(world):
    assert world.post(b" " * (saleor.LARGEST_BODY + 1), "x").status_code == 413
    assert requests.post(world.url, iter([b"{}"]), timeout=PATIENCE).status_code == 413


@pytest.mark.parametrize(
    ("amount", "currency", "units"),
    [
        ("98.4", "EUR", 9840),
        ("500", "JPY", 500),
        ("1.234", "KWD", 1234),
        ("0.1", "USD", 10),
        ("1E+2", "USD", 10_000),
    ],
)
def test_amounts_are_exact_in_each_currency(amount, currency, units):
    raw = json.loads(f'{{"amount": {amount}, "currency": "{currency}"}}', parse_float=saleor.Decimal)
    assert saleor.count_minor_units(raw, currency=currency) == units


def test_the_sequence_grows_with_time_and_stays_in_its_range():
    assert [saleor.make_sequence(payload(name, ORDER["created"])) for name in saleor.CHANGES] == [
        1,
        2,
        3,
        4,
        5,
        6,
    ]
    later = (
        "2026-11-20T09:30:02+00:00",
        "2026-11-20T10:31:00+01:00",
        "2035-01-01T00:00:00Z",
        "2036-01-01T00:00:00Z",
    )
    sequences = [saleor.make_sequence(payload("OrderCreated", at)) for at in later]
    assert sequences == sorted(sequences) and sequences[-1] == 2**31 - 1 > sequences[-2]
    assert saleor.make_sequence(payload("OrderCreated", "2026-11-20T09:29:00Z")) == 1, (
        "a clock that is behind"
    )


def test_a_guest_and_a_line_without_a_sku_have_ids_too(world):
    line = ORDER["lines"][0] | {"productSku": None}
    world.send(payload("OrderCreated", user=None, billingAddress=None, lines=[line]))
    world.send(payload("OrderConfirmed", user=None, userEmail="ANN@example.com"))
    first, second = (event["data"] for event in world.events)
    assert first["items"][0]["sku"] == line["id"] and first["name"] == ""
    assert first["userId"] == second["userId"]
    validate_inbound(world.events[0])


def test_the_program_prints_its_query_and_says_what_it_needs(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["saleor_adapter.py", "--query"])
    saleor.main()
    assert "... on OrderFullyPaid" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["saleor_adapter.py"])
    monkeypatch.delenv("ORDERPOST_TOKEN", raising=False)
    monkeypatch.delenv("SALEOR_URL", raising=False)
    with pytest.raises(SystemExit, match="Set SALEOR_URL and ORDERPOST_TOKEN"):
        saleor.main()


def test_the_endpoint_takes_its_events(settings, world, live_server):
    settings.ORDER_SOURCES, settings.FAST_PATH = ["saleor"], False
    secret = make_token(scopes=["events:write"], source="saleor")
    world.adapter.events_url, world.adapter.token = f"{live_server.url}/api/v1/events", secret
    paid = payload("OrderFullyPaid", totalCharged=money(98.4))
    sent = [world.send(body) for body in (payload("OrderCreated"), paid, paid)]
    assert [answer.text for answer in sent] == ["processed", "processed", "repeated"]
    refused = world.send(payload("OrderConfirmed", totalRefunded=money(4)))
    assert refused.status_code == 422 and "orderpost answered 422" in refused.text
    order = Order.objects.get()
    assert (order.source, order.status, order.reference) == ("saleor", "paid", "1001")
    assert [mail.event_type for mail in EmailNotification.objects.all()] == ["order.paid"]
    world.adapter.token = "wrong"
    assert world.send(payload("OrderConfirmed")).status_code == 503


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
