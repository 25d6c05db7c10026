"""Orders in which somebody is owed money or an answer are counted where people look."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest
from django.db import transaction
from django.db.models.functions import Now
from django.urls import reverse

from operations import metrics
from orders.conditions import STUCK_ORDERS, Stuck, stuck_statement
from orders.models import STUCK, RefundWay, Shipment
from runtime.conditions import read_facts
from tests.kit.orders import (
    cancel_order,
    complete_order,
    confirm_order,
    make_order,
    pay_order,
    refund_order,
    ship_order,
)
from tests.kit.people import staff_client
from tests.kit.plans import rows_without_index
from tests.kit.words import (
    Order,
    order_services,
    read_database_time,
)

pytestmark = pytest.mark.django_db
HOUR = dt.timedelta(hours=1)


def read_stuck() -> dict[str, Stuck]:
    return dict(read_facts(now=read_database_time())[STUCK_ORDERS])


def numbers() -> dict[str, int]:
    return {state: group.orders for state, group in read_stuck().items()}


def since(order: Order, **ages: dt.timedelta) -> None:
    Order.objects.filter(id=order.id).update(**{column: Now() - age for column, age in ages.items()})


def unshipped(age: dt.timedelta = 25 * HOUR, **fields: Any) -> Order:
    """Make a confirmed order that was paid seven times as long ago."""
    order = unconfirmed(age * 7, **fields)
    confirm_order(order_id=order.id)
    since(order, stock_reserved_at=age)
    return order


def unpaid(age: dt.timedelta = 25 * HOUR, **fields: Any) -> Order:
    order = make_order(**fields)
    confirm_order(order_id=order.id)
    since(order, stock_reserved_at=age)
    return order


def unconfirmed(age: dt.timedelta = 25 * HOUR, **fields: Any) -> Order:
    order = make_order(**fields)
    pay_order(order_id=order.id)
    since(order, paid_at=age)
    return order


def unrefunded(age: dt.timedelta = 25 * HOUR, **fields: Any) -> Order:
    order = unconfirmed(**fields)
    cancel_order(order_id=order.id)
    since(order, updated_at=age)
    return order


def unexpected_payment(age: dt.timedelta = 25 * HOUR, **fields: Any) -> Order:
    order = make_order(**fields)
    cancel_order(order_id=order.id)
    with transaction.atomic():
        order_services.note_unexpected_payment(order_id=order.id, event_id=uuid.uuid4()).save()
    since(order, unexpected_payment_at=age)
    return order


def confirmed(age: dt.timedelta = HOUR) -> Order:
    order = unconfirmed()
    confirm_order(order_id=order.id)
    since(order, stock_reserved_at=age)
    return order


def shipped(age: dt.timedelta = HOUR) -> Order:
    order = unconfirmed()
    shipment = ship_order(order_id=order.id)
    Shipment.objects.filter(id=shipment.id).update(shipped_at=Now() - age)
    return order


MAKE = {
    "unconfirmed": unconfirmed,
    "unshipped": unshipped,
    "unpaid": unpaid,
    "unrefunded": unrefunded,
    "unexpected_payment": unexpected_payment,
}


@pytest.mark.parametrize("state", STUCK)
def test_an_order_is_stuck_after_the_hours_of_the_setting_and_only_there(state, settings):
    confirmed()
    shipped()
    order = MAKE[state](age=23 * HOUR)
    assert set(numbers().values()) == {0}
    settings.STUCK_ORDER_HOURS = 22
    assert numbers() == dict.fromkeys(STUCK, 0) | {state: 1}
    assert read_stuck()[state].oldest_seconds == pytest.approx(23 * 3600 * STUCK[state].times, abs=60)
    Order.objects.filter(id=order.id).update(source="shop-a")  # another system answers for it
    assert set(numbers().values()) == {0}


def test_the_next_step_ends_each_state():
    confirmed()
    shipped()
    orders = {state: make() for state, make in MAKE.items()}
    assert numbers() == dict.fromkeys(STUCK, 1)
    complete_order(order_id=orders["unconfirmed"].id)
    ship_order(order_id=orders["unshipped"].id)
    pay_order(order_id=orders["unpaid"].id)
    refund_order(order_id=orders["unrefunded"].id, amount=1)
    since(orders["unrefunded"], updated_at=25 * HOUR)
    owed = {"unrefunded": 1, "unexpected_payment": 1}  # a part of one, and all of the other
    assert numbers() == dict.fromkeys(STUCK, 0) | owed
    refund_order(order_id=orders["unrefunded"].id)
    refund_order(order_id=orders["unexpected_payment"].id, way=RefundWay.EVENT)
    assert set(numbers().values()) == {0}


@pytest.mark.parametrize(("days", "expected"), [(6, 1), (8, 0)])
def test_a_paid_order_is_stuck_only_where_orders_are_confirmed(days, expected):
    unconfirmed()
    assert numbers()["unconfirmed"] == 0
    completed = confirmed(age=dt.timedelta(days=days))
    assert numbers()["unconfirmed"] == expected
    complete_order(order_id=completed.id)
    assert numbers()["unconfirmed"] == expected


@pytest.mark.parametrize(("days", "expected"), [(59, 1), (61, 0)])
def test_an_order_is_unshipped_only_where_parcels_leave(days, expected):
    order = unshipped()
    assert numbers()["unshipped"] == 0
    last = shipped(age=dt.timedelta(days=days))
    assert numbers()["unshipped"] == expected
    complete_order(order_id=last.id)
    ship_order(order_id=order.id)
    assert numbers()["unshipped"] == 0


def test_a_cancelled_order_that_was_not_paid_owes_nothing():
    order = make_order()
    cancel_order(order_id=order.id)
    since(order, updated_at=25 * HOUR)
    assert set(numbers().values()) == {0}


def test_the_count_reads_indexes_alone(filled):
    before = numbers()
    confirmed()
    shipped()
    for make in MAKE.values():
        make()
    assert numbers() == {state: before[state] + 1 for state in STUCK}
    assert rows_without_index(stuck_statement()) == {}


def test_metrics_have_each_state():
    unrefunded()
    families = {family.name: family for family in metrics.numbers()}
    numbers = {sample.labels["state"]: sample.value for sample in families["orderpost_stuck_orders"].samples}
    assert numbers == dict.fromkeys(STUCK, 0) | {"unrefunded": 1}


@pytest.mark.parametrize("state", STUCK)
def test_the_tile_leads_to_the_list_of_these_orders_and_each_to_its_timeline(state, admin_client):
    confirmed()
    shipped()
    orders = {state: make(reference=f"R-{state}") for state, make in MAKE.items()}
    tiles = {tile["label"]: tile for tile in admin_client.get("/admin/").context["tiles"]}
    tile = tiles[f"stuck orders: {state}"]
    assert tile["bad"] and tile["value"] == "1"
    page = admin_client.get(tile["url"]).content.decode()
    listed = [other for other in STUCK if f"R-{other}" in page]
    assert listed == [state]
    address = reverse("admin:orders_order_change", args=[orders[state].id])
    assert address in page and "Timeline" in admin_client.get(address).content.decode()


def test_the_tile_is_for_those_who_may_see_orders_and_calm_without_a_stuck_one():
    def tiles(*permissions: str) -> list[tuple[str, bool]]:
        page = staff_client(*permissions, name=f"with{len(permissions)}").get("/admin/")
        return [(tile["label"], tile["calm"]) for tile in page.context["tiles"] if "stuck" in tile["label"]]

    assert tiles() == []
    assert tiles("view_order") == [("stuck orders", True)]
