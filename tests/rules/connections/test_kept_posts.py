"""How long a shop's posts are kept, and that a person's leave with the person."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from django.utils import timezone

from orders.models import Shipment
from retention.purge import purge, rules
from shop_connections.compare import compare_shop
from shop_connections.encryption import encrypt
from shop_connections.models import ConnectionPost
from shop_connections.process import process_waiting
from tests.kit.people import ANN, BOB, erase, export, grep
from tests.kit.plain_shop import KEY, body_of, connect, plain_shop, post
from tests.kit.woocommerce import FakeShop
from tests.kit.words import ERASED, ERASED_ADDRESS, EmailNotification, Order, address_hash, our_id
from tests.rules.connections.test_woocommerce_posts import send

__all__ = ["plain_shop"]
pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder"),
]


def paid(order_id: str, email: str) -> bytes:
    return body_of(order_id, changes=[("placed", {"email": email}), ("completed", {"email": email})])


def test_the_daily_purge_deletes_posts_after_14_days(plain_shop):
    for days in (13, 15):
        ConnectionPost.objects.create(
            source="shop-w", body="{}", received_at=timezone.now() - dt.timedelta(days)
        )
    (rule,) = (rule for table, rule in rules() if table == "connection_posts")
    assert purge(table="connection_posts", rule=rule) == 1
    assert ConnectionPost.objects.count() == 1


def test_an_erasure_takes_a_persons_posts_and_no_others(plain_shop):
    for order_id, email in (("A-1", ANN), ("A-2", BOB)):
        post(paid(order_id, email))
    process_waiting(seconds=60)
    post(paid("A-3", ANN.upper()))  # still waits
    erase(ANN)
    bodies = [row.body for row in ConnectionPost.objects.order_by("id")]
    assert [ERASED in body for body in bodies] == [True, False, True]
    assert process_waiting(seconds=60) == "none"
    assert sorted(Order.objects.values_list("email", flat=True)) == sorted([ERASED_ADDRESS, BOB])
    assert not EmailNotification.objects.filter(recipient_email__iexact=ANN).exists()


def test_an_export_has_a_persons_posts_and_no_others(plain_shop):
    for order_id, email in (("A-1", ANN), ("A-2", BOB)):
        post(paid(order_id, email))
    process_waiting(seconds=60)
    (row,) = export(ANN)["connection_posts"]
    assert ANN in row["body"] and BOB not in json.dumps(export(ANN), default=str)


def test_an_erasure_takes_the_numbers_of_a_persons_parcels_and_no_later_post_brings_them_back(settings):
    settings.CONNECTION_KEY, settings.FAST_PATH = [KEY], False
    shop = FakeShop()
    connect(secret=encrypt(shop.secret))
    id = shop.place(email=ANN)
    shop.ship(id, "JD0001")
    for save in (shop.edit, shop.edit):
        for posted in shop.deliveries():
            assert send(*posted) == 202
        process_waiting(seconds=60)
        erase(ANN, force=True)
        assert Shipment.objects.count() == 1
        assert "JD0001" not in str(Shipment.objects.values_list())
        shop.ship(id, "JD0001")
        save(id)


def processed(*bodies: bytes) -> None:
    for body in bodies:
        assert post(body).status_code == 202
    process_waiting(seconds=60)


def test_no_later_post_brings_an_erased_person_back(plain_shop):
    """Of an order that is erased here, of one that was placed before, and of one that nobody can read."""
    processed(paid("A-1", ANN))
    erase(ANN, force=True)
    before = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    placed = [("placed", {"email": ANN, "placedAt": before.isoformat()})]
    processed(
        paid("A-1", ANN),
        body_of("A-1", changes=[("cancelled", {"email": "other@example.com", "name": "Ann Example"})]),
        body_of("A-2", changes=placed),
        body_of("A-3", changes=[("placed", {"email": ANN, "totalAmount": "?"})]),
        body_of("A-4", fault="it has no total", billing={"email": ANN.upper()}),
        body_of("A-5", crash="a defect", billing=json.dumps({"email": ANN}).replace("@", "\\u0040")),
    )
    assert grep(ANN) == [] and grep("Ann Example") == [] and grep("u0040") == []
    assert set(ConnectionPost.objects.values_list("body", "state")) == {(ERASED, "done")}


def test_a_customer_who_came_back_keeps_their_posts(plain_shop):
    processed(paid("A-1", ANN))
    erase(ANN, force=True)
    now = dt.datetime.now(dt.UTC).isoformat()
    processed(body_of("A-2", changes=[("placed", {"email": ANN, "placedAt": now})]))
    assert ANN in ConnectionPost.objects.order_by("id")[1].body
    assert Order.objects.filter(email=ANN).count() == 1
    erase(ANN, force=True)
    assert grep(ANN) == []


def test_a_comparison_stores_nothing_of_an_erased_person(plain_shop, monkeypatch):
    processed(paid("A-1", ANN), paid("A-2", BOB))
    erase(ANN, force=True)
    plain_shop.refresh_from_db()
    bodies = [
        body_of(id, changes=[("cancelled", {"email": email})]) for id, email in (("A-1", ANN), ("A-2", BOB))
    ]
    monkeypatch.setattr("shop_connections.compare._read", lambda *_, **__: [(body, None) for body in bodies])
    assert [each.order_id for each in compare_shop(plain_shop).missing] == ["A-2"]
    assert grep(ANN) == []


def test_a_post_is_found_by_its_order_and_by_each_address_in_it(plain_shop):
    text = json.dumps({"note": f"call {BOB}"}).replace("@", "\\u0040")
    processed(paid("A-1", ANN), body_of("A-2", fault="no", billing=text), b"webhook_id=8")
    rows = list(ConnectionPost.objects.order_by("id").values_list("order_id", "address_hashes"))
    assert rows == [
        (our_id(source="shop-w", id="A-1"), [address_hash(ANN)]),
        (our_id(source="shop-w", id="A-2"), [address_hash(BOB)]),
        (None, []),
    ]
