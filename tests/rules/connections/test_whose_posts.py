"""Posts of a copy of the shop, and of a shop that was set up again, change nobody else's order."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from shop_connections import compare, going_live
from shop_connections.encryption import encrypt
from shop_connections.models import ConnectionPost, ShopConnection
from shop_connections.process import process_waiting
from shop_connections.services import MOST_ADDRESSES
from shop_connections.woocommerce.signature import sign
from tests.kit.plain_shop import KEY, SOURCE, connect
from tests.kit.woocommerce import FakeShop
from tests.kit.words import EmailNotification, Order, our_id
from tests.rules.connections.test_woocommerce_posts import EVERY_EMAIL, send

pytestmark = pytest.mark.django_db
STAGING = "https://staging.shop.example.com"


@pytest.fixture
def shop(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeShop]:
    settings.CONNECTION_KEY, settings.FAST_PATH, settings.NOTIFY_ON = [KEY], False, EVERY_EMAIL
    shop = FakeShop(seed=7)
    connect(secret=encrypt(shop.secret), state="live", live_at=timezone.now() - dt.timedelta(days=1))
    yield shop


def link(address: str) -> dict[str, Any]:
    return {"self": [{"href": f"{address}/wp-json/wc/v3/orders/1"}]}


def deliver(shop: FakeShop) -> None:
    for post in shop.deliveries():
        assert send(*post) == 202
    process_waiting(seconds=60)


def order_of(id: int) -> Order:
    return Order.objects.get(id=our_id(source=SOURCE, id=str(id)))


def act(client: Any, action: str, address: str) -> str:
    shop = ShopConnection.objects.get()
    url = reverse("admin:connections_shopconnection_act", args=[shop.id])
    answer = client.post(url, {"action": action, "address": address}, follow=True)
    return str(answer.content.decode())


def page_of(client: Any) -> str:
    shop = ShopConnection.objects.get()
    url = reverse("admin:connections_shopconnection_change", args=[shop.id])
    return str(client.get(url).content.decode())


class TestAddresses:
    def test_a_post_of_a_copy_changes_nothing_and_the_page_asks(self, shop, admin_client):
        id = shop.place()
        deliver(shop)
        billing = shop.orders[id]["billing"] | {"email": "dev@example.com"}
        shop.edit(id, billing=billing)
        shop.waiting.clear()
        deliver_with_links(shop, id, STAGING)  # it has the shop's secret
        assert order_of(id).email == "ann@example.com"
        row = ConnectionPost.objects.unusable().last()
        assert row is not None and row.reason.startswith(f"this post is from {STAGING}")
        assert f"Posts from {STAGING}" in page_of(admin_client)

        said = act(admin_client, "copy", STAGING)
        assert f"Posts from {STAGING} are left out" in said and f"<h2>Posts from {STAGING}" not in said
        process_waiting(seconds=60)
        assert order_of(id).email == "ann@example.com"
        assert not ConnectionPost.objects.unusable().exists()
        assert ConnectionPost.objects.filter(reason=f"left out: it is from the copy at {STAGING}").exists()

    def test_one_click_adds_an_address_and_processes_its_posts(self, shop, admin_client):
        id = shop.place()
        shop.waiting.clear()
        german = "https://shop.example.com/de"
        deliver_with_links(shop, id, german)
        assert not Order.objects.exists()
        act(admin_client, "address", german)
        process_waiting(seconds=60)
        assert order_of(id).status == "paid"
        assert ShopConnection.objects.get().addresses == [german]
        assert "Nothing was changed" in act(admin_client, "address", german)

    @pytest.mark.parametrize("address", ["", "https://evil.example", "https://shop.example.com"])
    def test_only_an_address_that_waits_for_an_answer_is_taken(self, shop, admin_client, address):
        assert "No post from this address waits" in act(admin_client, "address", address)

    def test_a_connection_has_a_limited_number_of_them(self, shop, admin_client):
        ShopConnection.objects.update(copies=[f"https://{n}.example" for n in range(MOST_ADDRESSES)])
        deliver_with_links(shop, shop.place(), STAGING)
        process_waiting(seconds=60)
        assert "at most 50" in act(admin_client, "copy", STAGING)

    def test_another_scheme_and_a_missing_link_are_the_shops(self, shop):
        for address in ("http://SHOP.example.com", "https://shop.example.com/"):
            deliver_with_links(shop, shop.place(), address)
        shop.place()
        deliver(shop)
        assert Order.objects.count() == 3


def deliver_with_links(shop: FakeShop, id: int, address: str) -> None:
    """Post an order as a site at this address does."""
    headers, _ = shop.post("order.updated", id)
    document = shop.document(id) | {"_links": link(address)}
    body = json.dumps(document).encode()
    assert send(headers | {"X-WC-Webhook-Signature": sign(body=body, secret=shop.secret)}, body) == 202
    process_waiting(seconds=60)


class TestKeys:
    def test_the_order_of_a_shop_that_was_set_up_again_is_another(self, shop):
        id = shop.place()
        shop.complete(id)
        deliver(shop)
        ann = order_of(id)
        billing = {"first_name": "Bob", "last_name": "Ray", "email": "bob@example.com"}
        shop.orders[id] |= {"order_key": "wc_order_other", "billing": billing, "date_completed_gmt": None}
        shop.edit(id, status="processing", date_created_gmt=shop._now(), date_paid_gmt=shop._now())
        deliver(shop)
        ann.refresh_from_db()
        assert (ann.email, ann.status) == ("ann@example.com", "completed")
        bob = Order.objects.exclude(id=ann.id).get()
        assert (bob.email, bob.status, bob.reference) == ("bob@example.com", "paid", ann.reference)
        assert EmailNotification.objects.filter(order_id=bob.id, status="pending").count() == 1
        shop.complete(id)
        deliver(shop)
        assert Order.objects.count() == 2
        bob.refresh_from_db()
        assert bob.status == "completed"

    def test_the_key_is_not_stored_because_it_opens_the_customers_page(self, shop):
        id = shop.place()
        deliver(shop)
        assert order_of(id).shop_key and "wc_order" not in order_of(id).shop_key


@pytest.mark.django_db(transaction=True)  # the order is noted after the commit
class TestOrdersBelowAnother:
    def test_they_are_orders_of_their_own_until_the_page_is_told_otherwise(self, shop, admin_client):
        first = shop.place(parent_id=7)
        deliver(shop)
        assert emails_of(first) == ["order.paid"]
        assert f"<p>{first} belong to another order." in page_of(admin_client)
        assert "only parcels and refunds are told" in act(admin_client, "vendors", "")
        second = shop.place(parent_id=7)
        shop.complete(second)
        shop.refund(second, "1.00")
        deliver(shop)
        assert emails_of(second) == ["order.part_refunded"]
        assert "You said that they are <b>vendors' parts" in page_of(admin_client).replace("&#x27;", "'")
        act(admin_client, "own", "")
        third = shop.place(parent_id=7)
        deliver(shop)
        assert emails_of(third) == ["order.paid"]
        assert ShopConnection.objects.get().parents == {"seen": [str(first)], "are": "own"}

    def test_the_page_names_few_of_them_and_none_of_a_known_marketplace(self, shop):
        for number in range(12):
            shop.place(parent_id=7, created_via="dokan" if number == 0 else "checkout")
        deliver(shop)
        assert len(ShopConnection.objects.get().parents["seen"]) == 10


def emails_of(id: int) -> list[str]:
    rows = EmailNotification.objects.filter(order_id=order_of(id).id).order_by("id")
    return list(rows.values_list("event_type", flat=True))


def test_a_clock_that_is_off_is_named_and_the_times_are_corrected(shop, admin_client):
    ids = [shop.place() for _ in range(3)]
    for headers, body in shop.deliveries():
        assert send(headers, body) == 202
    # As if the shop's clock were 3.5 hours ahead of ours.
    now = timezone.now()
    for number, post in enumerate(ConnectionPost.objects.order_by("id")):
        assert post.modified_at is not None
        ConnectionPost.objects.filter(id=post.id).update(
            received_at=post.modified_at - dt.timedelta(hours=3, minutes=30) + dt.timedelta(seconds=number)
        )
    process_waiting(seconds=60)
    order, post = order_of(ids[2]), ConnectionPost.objects.order_by("id").last()
    assert post is not None and order.paid_at is not None
    assert abs(order.paid_at - post.received_at) < dt.timedelta(seconds=10)
    assert order.reported_at == post.modified_at and order.paid_at < now
    assert "The shop's clock is 3 h 30 min ahead." in page_of(admin_client).replace("&#x27;", "'")


class TestAPlatformThatThisReleaseDoesNotKnow:
    """As while a later release, which knows it, runs next to this one."""

    @pytest.fixture(autouse=True)
    def unknown(self, shop: FakeShop) -> None:
        connect(
            "later", secret=encrypt(shop.secret), state="live", live_at=timezone.now(), api_key=encrypt("k")
        )
        ShopConnection.objects.filter(source="later").update(platform="later", last_post_at=timezone.now())

    def test_its_posts_are_refused_for_now_and_those_that_wait_go_on_waiting(self, shop):
        shop.place()
        ((headers, body),) = shop.deliveries()
        answer = Client().post("/connect/later", body, content_type="application/json", headers=headers)
        assert (answer.status_code, answer["Retry-After"]) == (503, "60")
        ConnectionPost.objects.create(source="later", body=body.decode())
        shop.place()
        deliver(shop)
        assert list(ConnectionPost.objects.waiting().values_list("source", flat=True)) == ["later"]
        assert Order.objects.count() == 1

    def test_it_is_compared_with_nothing_and_disturbs_no_other(self, shop, admin_client):
        assert not compare.is_due() and not going_live.compare_all() and not compare.compare_all()
        id = ShopConnection.objects.get(source="later").id
        url = reverse("admin:connections_shopconnection_change", args=[id])
        page = admin_client.get(url, follow=True).content.decode()
        assert "This release does not know the platform of later." in page
