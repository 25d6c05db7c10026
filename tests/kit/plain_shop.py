"""A platform without oddities, for tests of what all connections share: its posts name their events.

A post is signed by its HMAC in the header X-Signature.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from django.test import Client
from shop_connections.translation import MOST_CHANGES, Stored, Translation

from events.consuming.envelope import read_json
from shop_connections import platforms, receive
from shop_connections.encryption import encrypt
from shop_connections.models import ShopConnection
from shop_connections.platforms import Platform
from tests.kit.events import told
from tests.kit.words import Rejected

KEY = "k" * 40
SECRET = "the shop's secret"
SOURCE = "shop-w"


def is_ping(*, body: bytes, content_type: str) -> bool:
    return body == b"webhook_id=7"


def is_signed(*, body: bytes, headers: Mapping[str, str], secret: str) -> bool:
    return hmac.compare_digest(sign(body, secret), headers.get("X-Signature", ""))


def sign(body: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def read_order_id(body: bytes) -> str | None:
    document = read_json(body)
    return str(document["id"]) if "id" in document else None


def translate(
    body: bytes,
    *,
    stored: Stored | None,
    source: str,
    mapping: Mapping[str, str],
    received_at: dt.datetime,
    most: int = MOST_CHANGES,
) -> Translation:
    """Return the changes that a post names, unless the order was saved later."""
    document = read_json(body)
    modified_at = dt.datetime.fromisoformat(document["modified_at"])
    if "fault" in document:
        raise Rejected(document["fault"])
    if "crash" in document:
        raise ZeroDivisionError(document["crash"])
    events = []
    if stored is None or stored.modified_at is None or modified_at >= stored.modified_at:
        for number, (change, data) in enumerate(
            document["changes"], start=(stored.version if stored else 0) + 1
        ):
            event = told(change, document["id"], number, source=source, **data)
            event["eventId"] = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{source}:{document['id']}:{change}"))
            event["timestamp"] = document["modified_at"]
            events.append(event)
    doubts = []
    if len(events) > most:
        doubts = [f"changes: The post has {len(events):,} of them."]
        events = [events[-1] | {"data": events[-1]["data"] | {"notify": False}}]
    return Translation(document["id"], events, modified_at, document["id"], doubts)


PLAIN = Platform(
    is_ping=is_ping,
    may_be_signed=lambda **_: True,
    is_signed=is_signed,
    read_order_id=read_order_id,
    translate=translate,
    read_orders=lambda **_: (),
    platform_emails={"order.paid": "Paid"},
)


def lift_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take any number of posts a second. The count in Valkey outlives a test."""
    monkeypatch.setattr(receive, "MOST_A_SECOND", 1_000_000)


@pytest.fixture
def plain_shop(db: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShopConnection]:
    """Return a connection in trial of a shop with this platform."""
    settings.CONNECTION_KEY = [KEY]
    lift_limit(monkeypatch)
    monkeypatch.setitem(platforms.PLATFORMS, "woocommerce", PLAIN)
    yield connect()


def connect(source: str = SOURCE, **fields: Any) -> ShopConnection:
    values = {"state": "trial", "address": "https://shop.example.com", "secret": encrypt(SECRET)} | fields
    return ShopConnection.objects.create(source=source, **values)


def body_of(order_id: str, *changes: str, at: dt.datetime | None = None, **more: Any) -> bytes:
    """Return the body of a post about an order's changes, saved at this time, or now."""
    document: dict[str, Any] = {
        "id": order_id,
        "modified_at": (at or dt.datetime.now(dt.UTC)).isoformat(),
        "changes": [(change, {}) for change in changes],
    }
    return json.dumps(document | more).encode()


def post(body: bytes, *, source: str = SOURCE, secret: str = SECRET, **headers: str) -> Any:
    return Client(raise_request_exception=False).post(
        f"/connect/{source}",
        body,
        content_type="application/json",
        headers={"X-Signature": sign(body, secret), **headers},
    )
