"""A shop of Saleor through the whole connection: installed by one address, and its events as it posts them.

Each of the pairs of changes and posts that may meet is played in both orders.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client

from shop_connections.encryption import decrypt, encrypt
from shop_connections.models import ConnectionPost, ShopConnection
from shop_connections.process import process_waiting
from tests.kit.plain_shop import KEY, SOURCE, come_at_once, connect
from tests.kit.saleor import FakeSaleor
from tests.kit.words import EmailNotification, Order, our_id
from tests.rules.connections.test_woocommerce_posts import EVERY_EMAIL

pytestmark = pytest.mark.django_db
SECRET = "s" * 43
BASE = f"/connect/{SOURCE}/{SECRET}"


@pytest.fixture
def shop(settings: Any) -> Iterator[FakeSaleor]:
    settings.CONNECTION_KEY, settings.FAST_PATH, settings.NOTIFY_ON = [KEY], False, EVERY_EMAIL
    settings.CONNECTIONS_PRIVATE = True
    shop = FakeSaleor(seed=7, source=SOURCE)
    with shop.serve() as address:
        connect(secret=encrypt(SECRET), state="waiting", platform="saleor", address=address)
        yield shop


@pytest.fixture
def installed(shop: FakeSaleor) -> FakeSaleor:
    assert shop.install(Client(), f"{BASE}/manifest").status_code == 200
    return shop


def send(headers: dict[str, str], body: bytes, *, path: str = f"{BASE}/posts") -> int:
    headers = dict(headers)
    content_type = headers.pop("Content-Type")
    answer = Client().post(path, body, content_type=content_type, headers=headers)
    come_at_once()
    return answer.status_code


def take(shop: FakeSaleor) -> None:
    for headers, body in shop.deliveries():
        assert send(headers, body) == 202
    assert process_waiting(seconds=60) == "none"


def state_of(id: str) -> tuple[str | None, int, tuple[str, ...]]:
    order = Order.objects.filter(id=our_id(source=SOURCE, id=id)).first()
    if order is None:
        return None, 0, ()
    emails = EmailNotification.objects.filter(order_id=order.id).order_by("id")
    return order.status, order.refunded_amount, tuple(emails.values_list("event_type", flat=True))


def test_it_is_installed_by_one_address_and_its_first_order_has_its_email(installed):
    connection = ShopConnection.objects.get()
    assert installed.manifest["id"] == f"orderpost.{SOURCE}"
    assert decrypt(connection.api_secret) == installed.token and installed.token not in connection.api_secret
    assert set(connection.installation) == {"app", "keys", "place"}
    id = installed.place()
    take(installed)
    assert state_of(id) == ("paid", 0, ("order.paid",))
    assert ShopConnection.objects.get().state == "trial"
    assert not ConnectionPost.objects.exclude(state="done").exists()
