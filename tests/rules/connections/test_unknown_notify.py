"""A parcel of which another post may still say whether the customer is to hear of it."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db.models import F
from django.utils import timezone

from orders.models import Shipment
from shop_connections import compare, process
from shop_connections.changes import NOTIFY_WITHIN
from shop_connections.clocks import clock_offset
from shop_connections.models import ConnectionPost, ShopConnection
from shop_connections.process import process_waiting
from tests.kit.plain_shop import SOURCE, body_of, come_at_once, plain_shop, post
from tests.kit.words import EmailNotification, our_id

__all__ = ["plain_shop"]
pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct"])
ORDER = our_id(source=SOURCE, id="A-1001")


@pytest.fixture(autouse=True)
def _paid(settings: Any, plain_shop: ShopConnection) -> None:
    settings.FAST_PATH = False
    take(body_of("A-1001", "placed", "paid", at=ago(minutes=1)))


def ago(**delta: float) -> dt.datetime:
    return timezone.now() - dt.timedelta(**delta)


def take(*bodies: bytes) -> None:
    for body in bodies:
        assert post(body).status_code == 202
    come_at_once()
    assert process_waiting(seconds=60) == "none"


def wait() -> None:
    """Let the ten minutes pass, and process what is due."""
    ConnectionPost.objects.waiting().update(
        received_at=F("received_at") - NOTIFY_WITHIN, due_at=F("due_at") - NOTIFY_WITHIN
    )
    assert process_waiting(seconds=60) == "none"
    assert not ConnectionPost.objects.waiting().exists()


def emails() -> list[str]:
    rows = EmailNotification.objects.filter(order_id=ORDER).order_by("id")
    return list(rows.values_list("event_type", flat=True))


def with_parcel(notify: bool | None, *changes: str, at: dt.datetime | None = None) -> bytes:
    return body_of("A-1001", *changes, parcels={"P1": notify}, at=at)


def test_it_is_told_after_ten_minutes_and_until_then_the_post_waits_without_delaying_others(plain_shop):
    take(with_parcel(None))
    waiting = ConnectionPost.objects.get(state="waiting")
    assert waiting.due_at == waiting.received_at + NOTIFY_WITHIN
    assert emails() == ["order.paid"] and not process.is_waiting()
    take(body_of("A-1002", "placed", "paid"))
    assert ConnectionPost.objects.waiting().count() == 1
    wait()
    assert emails() == ["order.paid", "order.shipped"]
    take(with_parcel(None))
    assert emails() == ["order.paid", "order.shipped"] and not ConnectionPost.objects.waiting().exists()


@pytest.mark.parametrize("notify", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
def test_the_other_post_decides_whether_it_comes_before_or_after(plain_shop, notify, is_first):
    at = ago(seconds=1)
    own, of_order = with_parcel(notify, at=at), with_parcel(None, at=at)
    take(*((own, of_order) if is_first else (of_order,)))
    if not is_first:
        take(own)
    told = ["order.paid"] + ["order.shipped"] * notify
    assert emails() == told and Shipment.objects.count() == 1
    if ConnectionPost.objects.waiting().exists():
        wait()
    assert emails() == told and Shipment.objects.count() == 1


def test_a_completion_of_the_same_save_waits_for_its_parcel_and_has_one_email_with_it(plain_shop):
    take(with_parcel(None, "completed"))
    assert emails() == ["order.paid"]
    wait()
    assert emails() == ["order.paid", "order.completed"]
    assert Shipment.objects.count() == 1


def test_a_later_post_of_the_order_takes_the_place_of_the_one_that_waits(plain_shop):
    take(with_parcel(None, at=ago(seconds=2)))
    take(with_parcel(None, at=ago(seconds=1)))
    assert ConnectionPost.objects.waiting().count() == 1
    wait()
    assert emails() == ["order.paid", "order.shipped"]


def test_a_comparison_leaves_a_young_one_to_its_post(plain_shop):
    body = with_parcel(None)
    head = compare._read_head(plain_shop, body)
    assert head is not None
    offset = clock_offset(plain_shop)
    assert compare._find_missing(plain_shop, head, body, timezone.now(), offset) is None
    take(with_parcel(True))
    take(body_of("A-1001", parcels={"P1": None, "P2": True}))
    assert emails() == ["order.paid", "order.shipped", "order.shipped"]
