"""A platform without oddities, for tests of what all connections share: its posts name their changes.

A post is signed by its HMAC in the header X-Signature.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from django.db.models import F
from django.db.models.functions import Least
from django.test import Client

from events.consuming.envelope import read_json
from shop_connections import platforms
from shop_connections.encryption import decrypt, encrypt
from shop_connections.models import ConnectionPost, ShopConnection
from shop_connections.platforms import Platform, Verdict
from shop_connections.setup import PlatformEmail, Setup, SetupStep
from shop_connections.shop_order import ShopHead, ShopOrder, ShopParcel
from tests.kit.words import Rejected

KEY = "k" * 40
SECRET = "the shop's secret"
SOURCE = "shop-w"


def is_ping(*, body: bytes, content_type: str) -> bool:
    return body == b"webhook_id=7"


def is_authentic(shop: ShopConnection, *, body: bytes, headers: Mapping[str, str]) -> Verdict:
    signature = sign(body, decrypt(shop.secret))
    return "yes" if hmac.compare_digest(signature, headers.get("X-Signature", "")) else "no"


def sign(body: bytes, secret: str = SECRET) -> str:
    return hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def read_head(body: bytes) -> ShopHead | None:
    document = read_json(body)
    if "id" not in document:
        return None
    says_more = any(notify is not None for notify in document.get("parcels", {}).values())
    modified_at = dt.datetime.fromisoformat(document["modified_at"])
    return ShopHead(document["id"], modified_at=None if says_more else modified_at)


def read(body: bytes, *, locale: str) -> ShopOrder | None:
    """Return the order after the changes that a post names. What it does not name stays."""
    document = read_json(body)
    if "id" not in document:
        return None
    if "fault" in document:
        raise Rejected(document["fault"])
    if "crash" in document:
        raise ZeroDivisionError(document["crash"])
    names = [name for name, _ in document["changes"]]
    data: dict[str, Any] = {}
    for _, values in document["changes"]:
        data |= values
    if len(currency := data.get("currency", "EUR")) != 3:
        raise Rejected("its currency is not three letters")
    at, total = dt.datetime.fromisoformat(document["modified_at"]), data.get("totalAmount", 1000)
    placed_at = data.get("placedAt")
    return ShopOrder(
        id=document["id"],
        status=("pending" if names[-1] == "placed" else names[-1]) if names else "",
        shop_status=names[-1] if names else "",
        number=document["id"],
        currency=currency,
        total=total if isinstance(total, int) else None,
        created_at=dt.datetime.fromisoformat(placed_at) if placed_at else at if "placed" in names else None,
        modified_at=at,
        paid_at=at if "paid" in names else None,
        completed_at=at if "completed" in names else None,
        user_id="42",
        email=data.get("email", "ann@example.com"),
        name=data.get("name", "Ann"),
        items=({"sku": "TEA", "name": "Tea", "quantity": 2, "unit_amount": 500},),
        charges=(),
        refunds=(),
        parcels=tuple(
            ShopParcel(id, f"T-{id}", "", "", None, False, False, (), notify)
            for id, notify in document.get("parcels", {}).items()
        ),
    )


PLAIN = Platform(
    route=lambda _, rest: None if rest else "posts",
    is_ping=is_ping,
    may_be_signed=lambda **_: True,
    is_authentic=is_authentic,
    read_head=read_head,
    read=read,
    read_status=str.strip,
    read_orders=lambda **_: (),
    setup=Setup(
        connect=(
            SetupStep(
                "webhook",
                "Make a webhook",
                "woocommerce/webhook.html",
                lambda shop, calls: shop.last_post_at is not None,
                ("secret",),
            ),
        ),
        later=(
            SetupStep(
                "key", "Give a key", "woocommerce/key.html", lambda shop, calls: bool(shop.api_key), ("key",)
            ),
        ),
        emails=(PlatformEmail("Paid", ("order.paid",), ("order.confirmed",)), PlatformEmail("Welcome")),
        emails_at="Settings",
        reconnect="paste the secret into the shop's webhook",
        authorize="enter the key of the shop's API",
        show_secret=lambda _, secret: ("Copy this secret:", secret),
        find_lacks=lambda body: [],
    ),
)


@pytest.fixture
def plain_shop(db: None, settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShopConnection]:
    """Return a connection in trial of a shop with this platform."""
    settings.CONNECTION_KEY = [KEY]
    monkeypatch.setitem(platforms.PLATFORMS, "woocommerce", PLAIN)
    yield connect()


def connect(source: str = SOURCE, **fields: Any) -> ShopConnection:
    values = {"state": "trial", "address": "https://shop.example.com", "secret": encrypt(SECRET)} | fields
    values.setdefault("going_live", {"done_at": "before the test"} if values["state"] == "live" else None)
    return ShopConnection.objects.create(source=source, **values)


def body_of(order_id: str, *changes: str, at: dt.datetime | None = None, **more: Any) -> bytes:
    """Return the body of a post about an order's changes, saved at this time, or now."""
    document: dict[str, Any] = {
        "id": order_id,
        "modified_at": (at or dt.datetime.now(dt.UTC)).isoformat(),
        "changes": [(change, {}) for change in changes],
    }
    return json.dumps(document | more).encode()


def come_at_once() -> None:
    """Have the waiting posts come a second after the saves of their orders. Otherwise the clock is off."""
    came_at = Least(F("modified_at") + dt.timedelta(seconds=1), F("received_at"))
    ConnectionPost.objects.waiting().exclude(modified_at=None).update(received_at=came_at)


def post(body: bytes, *, source: str = SOURCE, secret: str = SECRET, **headers: str) -> Any:
    return Client(raise_request_exception=False).post(
        f"/connect/{source}",
        body,
        content_type="application/json",
        headers={"X-Signature": sign(body, secret), **headers},
    )
