"""A person with rows of every kind is erased, and no table has their data, nor after later posts."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from django.db.models.functions import Now
from django.utils import timezone

from runtime.models import AuditRow
from shop_connections.compare import compare_shop
from shop_connections.encryption import encrypt
from shop_connections.models import ConnectionPost, ShopConnection
from shop_connections.process import process_waiting
from tests.kit.acts import record_now
from tests.kit.api import Api, make_token, order_body
from tests.kit.events import SHOP, give, handle, received, told
from tests.kit.people import BOB, PAYMENT, erase, grep
from tests.kit.plain_shop import KEY, SOURCE, connect
from tests.kit.woocommerce import FakeShop
from tests.kit.words import EmailNotification, Order
from tests.rules.connections.test_woocommerce_posts import send

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder"),
]
ADDRESS, NAME, PHONE, STREET = (
    "annabel@secret.example",
    "Annabel Farnsworth",
    "0151 555 0199",
    "Hidden Lane 7",
)
NUMBER, TYPO = "JD0099887766", "anabel@secret.example"
SECRETS = [ADDRESS, TYPO, NAME, "Farnsworth", PHONE, STREET, NUMBER]
WHERE = {"address_1": STREET, "city": "Leeds", "country": "GB", "phone": PHONE}
BILLING = {"first_name": "Annabel", "last_name": "Farnsworth", "email": ADDRESS} | WHERE


@pytest.fixture
def shop(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeShop]:
    settings.CONNECTION_KEY, settings.FAST_PATH, settings.CONNECTIONS_PRIVATE = [KEY], False, True
    settings.ORDER_SOURCES = [SHOP]
    fake = FakeShop(seed=3)
    with fake.serve() as address:
        keys = {"api_key": encrypt(fake.key), "api_secret": encrypt(fake.key_secret)}
        now = timezone.now()
        connect(
            secret=encrypt(fake.secret),
            address=address,
            state="live",
            live_at=now - dt.timedelta(days=1),
            created_at=now - dt.timedelta(days=3),
            last_post_at=now,
            **keys,
        )
        yield fake


def deliver(shop: FakeShop) -> None:
    for posted in shop.deliveries():
        assert send(*posted) == 202
    process_waiting(seconds=60)


def secrets_left() -> dict[str, list[str]]:
    return {secret: tables for secret in SECRETS if (tables := grep(secret))}


def test_an_erased_person_is_in_no_table_and_no_later_post_brings_them_back(shop):
    posted = [shop.place(billing=BILLING, shipping=BILLING, customer_note=f"for {NAME}") for _ in range(2)]
    shop.ship(posted[0], NUMBER)
    deliver(shop)
    api = Api(make_token())
    body = order_body(email=TYPO, name=NAME, delivery_address=[NAME, STREET], customer_note=PHONE)
    order_id = api.post("/api/v1/orders", body, key="placed").json()["id"]
    assert api.post(f"/api/v1/orders/{order_id}/pay", key="paid").status_code == 200
    EmailNotification.objects.update(status="sent", sent_at=Now())
    email = EmailNotification.objects.filter(order_id=order_id).latest("id")
    copies = f"/api/v1/notifications/{email.id}/copies"
    corrected = {"recipient_email": ADDRESS, "update_order": True}
    assert api.post(copies, corrected, key="corrected").status_code == 201
    assert api.post(copies, {"recipient_email": BOB}, key="copied").status_code == 201
    assert give(told("paid", "A-1", 2, email=ADDRESS, name=NAME, totalAmount="?")) == "dead"
    assert handle(received(PAYMENT, f"{NAME}, {STREET}: <{ADDRESS}> {{")) == "dead"
    for id in (order_id, str(email.id)):
        reason = f"{NAME} called from {PHONE}"
        record_now(AuditRow(kind="email", act="Looked at it.", subject_id=id, reason=reason))
    EmailNotification.objects.update(status="sent", sent_at=Now())
    assert secrets_left().keys() == set(SECRETS)

    erase(TYPO, force=True)
    erase(ADDRESS, force=True)
    copy = EmailNotification.objects.get(recipient_email=BOB)
    assert NAME in copy.body, "an e-mail about the order to somebody else stays (personal-data.md)"
    erase(BOB, force=True)
    assert secrets_left() == {}

    for id in posted:
        shop.edit(id, customer_note=f"again for {NAME}")
        shop.ship(id, NUMBER)
    shop.cancel(posted[1])
    deliver(shop)
    shop.edit(posted[0], billing=BILLING | {"email": "other@secret.example"})
    shop.place(billing=BILLING, date_created_gmt="2020-01-01T00:00:00")
    deliver(shop)
    assert secrets_left() == {}
    assert not ConnectionPost.objects.exclude(state="done").exists()
    shop.edit(posted[0], status="completed")
    shop.waiting.clear()
    assert compare_shop(ShopConnection.objects.get(source=SOURCE)).missing == []
    assert secrets_left() == {}
    assert not Order.objects.filter(name__contains="Farnsworth").exists()
    again = api.post("/api/v1/orders", body, key="placed")
    assert again.headers["Idempotency-Replayed"] == "true"
    assert again.json().keys() == {"id", "user_id"} and again.json()["id"] == order_id
