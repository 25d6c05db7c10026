"""At the moment of going live, what the trial lost is stored as history before the posts that came since."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone

from shop_connections import compare, going_live
from shop_connections.compare import compare_shop
from shop_connections.encryption import encrypt
from shop_connections.http import ShopUnreachable
from shop_connections.models import ConnectionPost, ShopConnection
from shop_connections.process import OF_TRIAL, process_waiting
from shop_connections.services import change_state
from tests.kit.plain_shop import KEY, SOURCE, connect
from tests.kit.woocommerce import FakeShop
from tests.kit.words import EmailNotification, Order, our_id
from tests.rules.connections.test_woocommerce_posts import EVERY_EMAIL, send

pytestmark = pytest.mark.django_db
HOUR = dt.timedelta(hours=1)


@pytest.fixture
def shop(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeShop]:
    settings.CONNECTION_KEY, settings.FAST_PATH, settings.NOTIFY_ON = [KEY], False, EVERY_EMAIL
    settings.CONNECTIONS_PRIVATE, settings.SHOP_NAME = True, "Leaf & Cup"
    shop = FakeShop(seed=7)
    with shop.serve() as address:
        connect(
            secret=encrypt(shop.secret),
            address=address,
            api_key=encrypt(shop.key),
            api_secret=encrypt(shop.key_secret),
            created_at=timezone.now() - dt.timedelta(days=1),
            checked_at=timezone.now() - dt.timedelta(days=1),
        )
        yield shop


def row() -> ShopConnection:
    return ShopConnection.objects.get(source=SOURCE)


def deliver(shop: FakeShop) -> None:
    for post in shop.deliveries():
        assert send(*post) == 202
    process_waiting(seconds=60)


def go_live(shop: FakeShop) -> None:
    """Go live at the shop's present time."""
    shop._tick()
    live_at = shop.now.replace(tzinfo=dt.UTC)
    shop._tick()
    ShopConnection.objects.filter(last_post_at=None).update(state="trial")
    change_state(id=row().id, to="live")
    ShopConnection.objects.update(live_at=live_at)


def emails(**fields: Any) -> list[tuple[str, str]]:
    return list(EmailNotification.objects.filter(**fields).order_by("id").values_list("event_type", "status"))


def lose_a_refund(shop: FakeShop) -> int:
    """Place an order in the trial, and refund a part of it by a save whose post is lost."""
    id = shop.place()
    deliver(shop)
    shop.refund(id, "1.00")
    shop.waiting.clear()
    return id


def test_what_the_trial_lost_is_not_told_with_a_later_save(shop):
    lose_a_refund(shop)
    go_live(shop)
    assert going_live.is_due()
    going_live.compare_all()
    process_waiting(seconds=60)
    order = Order.objects.get()
    assert (order.status, order.refunded_amount) == ("part_refunded", 100)
    assert emails() == [("order.paid", "discarded")]
    shop.edit(int(order.reference))
    deliver(shop)
    assert emails() == [("order.paid", "discarded")]
    assert not going_live.is_due() and row().going_live["problem"] == ""


def test_the_posts_since_then_wait_for_it(shop):
    id = lose_a_refund(shop)
    go_live(shop)
    other = shop.place()
    deliver(shop)
    assert not Order.objects.filter(id=our_id(source=SOURCE, id=str(other))).exists()
    assert ConnectionPost.objects.waiting().count() == 1
    going_live.compare_all()
    process_waiting(seconds=60)
    assert emails(status="pending") == [("order.paid", "pending")]
    assert Order.objects.get(id=our_id(source=SOURCE, id=str(id))).refunded_amount == 100


def test_an_order_saved_since_then_is_left_to_its_post_which_is_told(shop):
    id = lose_a_refund(shop)
    go_live(shop)
    shop.complete(id)
    posts = shop.deliveries()
    going_live.compare_all()
    assert not ConnectionPost.objects.filter(is_history=True).exists()
    for post in posts:
        send(*post)
    process_waiting(seconds=60)
    assert emails(status="pending") == [("order.completed", "pending"), ("order.part_refunded", "pending")]


def test_what_an_earlier_comparison_found_is_history_then(shop):
    lose_a_refund(shop)
    assert len(compare_shop(row()).missing) == 1
    go_live(shop)
    going_live.compare_all()
    assert not ConnectionPost.objects.missing().exists()
    process_waiting(seconds=60)
    assert Order.objects.get().refunded_amount == 100
    assert emails(status="pending") == []


def fail(*_: Any, **__: Any) -> None:
    raise ShopUnreachable("The shop answered with status 500.")


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ("no key", going_live.WITHOUT_KEY),
        ("away", "The shop answered with status 500."),
        ("a fault", "The comparison failed here, and the log says why."),
        ("dead", "The comparison was not done in time."),
    ],
)
def test_without_it_the_posts_go_on_and_the_page_and_the_timeline_say_so(
    shop, monkeypatch, admin_client, how, problem
):
    id = lose_a_refund(shop)
    if how == "no key":
        ShopConnection.objects.update(api_key="")
    go_live(shop)
    shop.edit(id)
    deliver(shop)
    if how == "away":
        monkeypatch.setattr(compare, "catch_up", fail)
    if how == "a fault":
        monkeypatch.setattr(compare, "catch_up", lambda *_, **__: 1 / 0)
    if how == "dead":
        began_at = timezone.now() - dt.timedelta(seconds=going_live.MOST_SECONDS + 1)
        ShopConnection.objects.update(going_live={"began_at": began_at.isoformat()})
    going_live.compare_all()
    process_waiting(seconds=60)
    assert emails(status="pending") == [("order.part_refunded", "pending")]
    url = reverse("admin:connections_shopconnection_change", args=[row().id])
    assert problem in admin_client.get(url).content.decode().replace("&#x27;", "'")
    if how != "no key":  # nobody waited for a comparison
        assert [line["text"] for line in Order.objects.get().warnings] == [OF_TRIAL]
    assert not going_live.is_due()


def test_one_process_compares(shop):
    go_live(shop)
    ShopConnection.objects.update(going_live={"began_at": timezone.now().isoformat()})
    going_live.compare_all()
    assert shop.requests == [] and going_live.is_due()


def test_going_live_again_compares_again(shop):
    go_live(shop)
    going_live.compare_all()
    change_state(id=row().id, to="trial")
    assert row().going_live is None
    go_live(shop)
    assert going_live.is_due()


def test_an_order_of_the_weeks_before_the_connection_is_mailed_about_its_next_change(shop):
    ShopConnection.objects.update(created_at=timezone.now(), checked_at=None)
    id = shop.place()
    shop.waiting.clear()
    compare_shop(row())
    process_waiting(seconds=60)
    assert emails() == []
    go_live(shop)
    going_live.compare_all()
    shop.cancel(id)
    deliver(shop)
    assert emails() == [("order.cancelled", "pending")]


def test_history_comes_before_posts_that_came_earlier(shop):
    lose_a_refund(shop)
    go_live(shop)
    for _ in range(3):
        shop.place()
    for post in shop.deliveries():
        send(*post)
    going_live.compare_all()
    first = ConnectionPost.objects.waiting().order_by("-is_history", "id").first()
    assert first is not None and first.is_history
