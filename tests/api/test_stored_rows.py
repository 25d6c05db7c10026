"""The rows that a placed and paid order leaves, and the events and e-mails of each change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.db import connection

from tests.kit.words import key_hash

pytestmark = pytest.mark.django_db(transaction=True)

ORDERS = "/api/v1/orders"
USER = "6f2b7c9e-4b0d-4c55-9b57-0d5a2f6c1e11"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
EVENTS = ("placed", "paid", "confirmed", "completed", "part_refunded", "refunded", "cancelled")

COLUMNS = {
    "orders": "id status version user_id email name locale reference items total_amount refunded_amount"
    " currency correlation_id created_at updated_at paid_at stock_reserved_at completed_at",
    "outbox_events": "id aggregate_type aggregate_id event_type version sequence payload metadata position"
    " shard retry_count next_attempt_at last_error created_at published_at dead_lettered_at discarded_at",
    "email_notifications": "id status retry_count max_retries next_attempt_at claimed_at claim_token"
    " last_error errors provider provider_message_id correlation_id traceparent created_at updated_at sent_at"
    " event_type recipient_email to_name locale subject body body_text idempotency_key delivered_at"
    " bounced_at order_id complained_at",
    "idempotency_keys": "scope key request_hash answer_status answer_body answer_location created_at",
}


def rows(table: str, order: str) -> list[dict[str, Any]]:
    """Return the `COLUMNS` of a table's rows."""
    columns = ", ".join(COLUMNS[table].split())
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT to_json(t)::text FROM (SELECT {columns} FROM {table} ORDER BY {order}) AS t")
        return [json.loads(text) for (text,) in cursor.fetchall()]


def without(row: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


@pytest.fixture
def stored(api) -> tuple[dict[str, Any], list[Any]]:
    """Return an order that was placed and paid under keys, and the two answers."""
    items = [{"sku": "TEA-1", "name": "Tea & <honey>", "quantity": 2, "unit_amount": 1995}]
    body = {
        "user_id": USER,
        "email": "alice@example.com",
        "total_amount": 4990,
        "name": "Zoë O'Hara",
        "currency": "EUR",
        "locale": "de-AT",
        "reference": "A-1/é",
        "items": items,
    }
    placed = api.post(ORDERS, body, key="k-1", X_Correlation_ID="c-1")
    paid = api.post(f"{placed.headers['Location']}/pay", key="k-2", X_Correlation_ID="c-2", traceparent=TRACE)
    assert (placed.status_code, paid.status_code) == (201, 200)
    return body | {"id": placed.json()["id"]}, [placed, paid]


def test_an_order_is_stored_with_each_value_of_its_request(stored):
    body, _ = stored
    (row,) = rows("orders", "id")
    assert row["paid_at"] == row["updated_at"] > row["created_at"]
    assert without(row, "paid_at", "updated_at", "created_at") == body | {
        "status": "paid",
        "version": 2,
        "refunded_amount": 0,
        "correlation_id": "c-1",
        "stock_reserved_at": None,
        "completed_at": None,
    }


def test_each_change_stores_an_unpublished_event(stored):
    body, _ = stored
    placed, paid = rows("outbox_events", "position")
    assert placed["position"] < paid["position"] and placed["shard"] == paid["shard"]
    said = {
        "orderId": body["id"],
        "userId": USER,
        "currency": "EUR",
        "totalAmount": 4990,
        "refundedAmount": 0,
        "fulfilment": "none",
    }
    free = ("id", "position", "shard", "created_at", "next_attempt_at")
    fresh = {
        "aggregate_type": "order",
        "aggregate_id": body["id"],
        "version": 1,
        "retry_count": 0,
        "last_error": "",
        "published_at": None,
        "dead_lettered_at": None,
        "discarded_at": None,
    }
    assert without(placed, *free) == fresh | {
        "event_type": "order.order.placed.v1",
        "sequence": 1,
        "payload": said | {"status": "pending", "items": [{"sku": "TEA-1", "quantity": 2}]},
        "metadata": {
            "userId": USER,
            "correlationId": "c-1",
            "traceId": None,
            "idempotencyKey": key_hash("k-1"),
        },
    }
    assert without(paid, *free) == fresh | {
        "event_type": "order.order.paid.v1",
        "sequence": 2,
        "payload": said | {"status": "paid"},
        "metadata": {
            "userId": USER,
            "correlationId": "c-2",
            "traceId": TRACE[3:35],
            "traceparent": TRACE,
            "idempotencyKey": key_hash("k-2"),
        },
    }


def test_a_payment_stores_a_rendered_email_that_is_due(stored):
    body, _ = stored
    (row,) = rows("email_notifications", "id")
    free = ("id", "next_attempt_at", "created_at", "updated_at", "body", "body_text")
    assert without(row, *free) == {
        "status": "pending",
        "retry_count": 0,
        "max_retries": 3,
        "claimed_at": None,
        "claim_token": None,
        "last_error": "",
        "errors": [],
        "provider": "",
        "provider_message_id": "",
        "correlation_id": "c-2",
        "traceparent": TRACE,
        "sent_at": None,
        "delivered_at": None,
        "bounced_at": None,
        "complained_at": None,
        "order_id": body["id"],
        "event_type": "order.paid",
        "recipient_email": "alice@example.com",
        "to_name": "Zoë O'Hara",
        "locale": "de-AT",
        "subject": "Zahlung für Ihre Bestellung A-1/é erhalten",
        "idempotency_key": f"{body['id']}:order.paid:2",
    }
    assert "Guten Tag Zoë O'Hara," in row["body_text"] and "Tea & <honey>" in row["body_text"]
    assert "Guten Tag Zoë O&#39;Hara," in row["body"] and "Tea &amp; &lt;honey&gt;" in row["body"]


def test_each_key_is_stored_with_its_answer(stored):
    _, answers = stored
    keys = rows("idempotency_keys", "created_at")
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM api_tokens")
        (token,) = cursor.fetchone()
    for row, key, answer in zip(keys, ("k-1", "k-2"), answers, strict=True):
        assert len(row["request_hash"]) == 64
        assert without(row, "created_at", "request_hash") == {
            "scope": f"token:{token}",
            "key": key_hash(key),
            "answer_status": answer.status_code,
            "answer_body": answer.content.decode(),
            "answer_location": answer.headers.get("Location", ""),
        }


def test_each_change_publishes_these_values_and_owes_its_email(api, settings):
    settings.NOTIFY_ON = [f"order.{name}" for name in EVENTS]
    url = "https://parcels.example.com/42?a=1&b=2"
    path, other = api.place(total_amount=100), api.place(total_amount=100)
    for action, body in [
        ("pay", None),
        ("confirm", None),
        ("refund", {"amount": 7}),
        ("complete", {"tracking_url": url}),
        ("refund", None),
    ]:
        assert api.post(f"{path}/{action}", body).status_code == 200
    for action, body in [("pay", {}), ("cancel", {"reason": "sold out"})]:
        assert api.post(f"{other}/{action}", body).status_code == 200
    done, cancelled = path[-36:], other[-36:]

    common = {"orderId", "userId", "currency", "totalAmount", "status", "refundedAmount", "fulfilment"}
    stored = {done: [], cancelled: []}
    for row in rows("outbox_events", "position"):
        payload = row["payload"]
        assert common <= set(payload)
        stored[row["aggregate_id"]].append(
            (row["event_type"], payload["status"], payload["refundedAmount"], without(payload, *common))
        )
        key = f"{row['aggregate_id']}:{row['event_type']}:{row['sequence']}"
        assert without(row["metadata"], "userId", "correlationId") == {"traceId": None, "idempotencyKey": key}
    assert stored[done] == [
        ("order.order.placed.v1", "pending", 0, {"items": []}),
        ("order.order.paid.v1", "paid", 0, {}),
        ("order.order.confirmed.v1", "confirmed", 0, {}),
        ("order.order.part_refunded.v1", "part_refunded", 7, {"amount": 7}),
        ("order.order.completed.v1", "part_refunded", 7, {"trackingUrl": url}),
        ("order.order.refunded.v1", "refunded", 100, {"amount": 93}),
    ]
    assert stored[cancelled][2:] == [
        ("order.order.cancelled.v1", "cancelled", 0, {"wasPaid": True, "hasReason": True})
    ]

    owed = [(row["order_id"], row["idempotency_key"]) for row in rows("email_notifications", "id")]
    ways = {
        done: ("placed", "paid", "confirmed", "part_refunded", "completed", "refunded"),
        cancelled: ("placed", "paid", "cancelled"),
    }
    for id, way in ways.items():
        keys = [key for order, key in owed if order == id]
        assert keys == [f"{id}:order.{name}:{version}" for version, name in enumerate(way, 1)]
