"""The posts of a WooCommerce shop, as the shop sends them, through the whole connection."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client

from shop_connections.encryption import encrypt
from shop_connections.models import ConnectionPost, ShopConnection
from shop_connections.process import process_waiting, retry
from tests.kit.plain_shop import KEY, SOURCE, come_at_once, connect
from tests.kit.woocommerce import FakeShop
from tests.kit.words import EmailNotification, Order, our_id

pytestmark = pytest.mark.django_db
EVERY_EMAIL = [
    *("order.placed", "order.paid", "order.confirmed", "order.completed", "order.cancelled"),
    *("order.refunded", "order.part_refunded", "order.shipped", "order.delivered"),
]


@pytest.fixture
def shop(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeShop]:
    settings.CONNECTION_KEY, settings.FAST_PATH, settings.NOTIFY_ON = [KEY], False, EVERY_EMAIL
    shop = FakeShop(seed=7)
    connect(secret=encrypt(shop.secret), state="waiting")
    yield shop


def send(headers: dict[str, str], body: bytes) -> int:
    headers = dict(headers)
    content_type = headers.pop("Content-Type")
    answer = Client().post(f"/connect/{SOURCE}", body, content_type=content_type, headers=headers)
    come_at_once()
    return answer.status_code


def state_of(id: int) -> tuple[str | None, int, tuple[str, ...]]:
    order = Order.objects.filter(id=our_id(source=SOURCE, id=str(id))).first()
    if order is None:
        return None, 0, ()
    emails = EmailNotification.objects.filter(order_id=order.id).order_by("id")
    return order.status, order.refunded_amount, tuple(emails.values_list("event_type", flat=True))


def test_the_ping_of_a_new_webhook_is_answered_200_and_stores_nothing(shop):
    assert send(*shop.ping()) == 200
    assert not ConnectionPost.objects.exists()


def test_a_replay_with_another_topic_in_its_header_changes_nothing(shop):
    id = shop.place()
    ((headers, body),) = shop.deliveries()
    assert [send(headers, body), send(headers | {"X-WC-Webhook-Topic": "order.deleted"}, body)] == [202, 202]
    process_waiting(seconds=60)
    assert state_of(id) == ("paid", 0, ("order.paid",))


@pytest.mark.parametrize("link", ["https://track_it.example/1", "https://dhl/1", "http://"])
def test_a_save_without_a_change_changes_nothing_whatever_a_parcels_link_is(shop, link):
    id = shop.place()
    shop.ship(id, "JD0001", link=link)
    versions = []
    for _ in range(2):
        for post in shop.deliveries():
            assert send(*post) == 202
        process_waiting(seconds=60)
        versions.append(Order.objects.get().version)
        shop.edit(id)
    assert versions[0] == versions[1]


def test_a_post_with_a_status_that_nobody_explained_has_it_as_long_as_that_is_why_it_is_unusable(shop):
    id = shop.place(status="Packing it's")
    for post in shop.deliveries():
        assert send(*post) == 202
    process_waiting(seconds=60)
    row = ConnectionPost.objects.get()
    assert (row.state, row.unknown_status) == ("unusable", "packing-it's")
    assert row.reason.startswith("its status \"packing-it's\" is not one of the platform's")
    ConnectionPost.objects.update(body=row.body.replace('"EUR"', '"EURO"'))
    assert retry(ids=[row.id]) == [row.id]
    process_waiting(seconds=60)
    row.refresh_from_db()
    assert (row.state, row.unknown_status) == ("unusable", "") and "currency" in row.reason
    assert state_of(id) == (None, 0, ())


def test_orders_and_their_emails_are_those_of_the_shop_each_once(shop):
    ids = [shop.place_any() for _ in range(20)]
    lives = [shop.live(id) for id in ids]
    posts = shop.deliveries()
    while lives:
        life = random.choice(lives)
        if next(life, None) is None:
            lives.remove(life)
        posts += shop.deliveries()
    for headers, body in posts:
        assert send(headers, body) == 202
        process_waiting(seconds=600)
    assert not ConnectionPost.objects.unusable().exists()
    truth = {id: shop.truth(id)[:3] for id in ids}
    assert {id: state_of(id) for id in ids} == truth
    assert ShopConnection.objects.get().state == "trial"
