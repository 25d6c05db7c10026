"""An order of ours and its parcel, told in every order of arrival: what is stored, published and mailed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from django.db import connection, transaction

from tests.kit.arrivals import ITEMS, STEPS, TOPICS, Expected, event_of, read_facts
from tests.kit.events import SHOP, USER, give, handle, new_id, received, told
from tests.kit.orders import place_order
from tests.kit.words import EMAILS, InboundDeadLetter, Order

pytestmark = pytest.mark.django_db


def query(sql: str) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        rows: list[tuple[Any, ...]] = cursor.fetchall()
    return rows


@pytest.fixture
def order(settings: Any) -> Order:
    settings.FAST_PATH = False
    settings.NOTIFY_ON = EMAILS
    return place_order(user_id=USER, email="ann@example.com", total_amount=1000, items=ITEMS)


def walk(order: Order, *steps: str) -> int:
    """Give the last step, check, and go on with each that is left. Then undo it. Return how many it was."""
    event = event_of(steps[-1], order.id)
    before = transaction.savepoint()
    expected = Expected.after(steps)
    result = handle(received(TOPICS[steps[-1]], event, key=str(order.id)))
    assert result == ("dead" if steps[-1] in expected.refused else "done"), steps
    assert read_facts(query)[str(order.id)] == expected.facts(), steps
    assert InboundDeadLetter.objects.count() == len(expected.refused), steps
    count = 1 + sum(walk(order, *steps, step) for step in STEPS if step not in steps)
    transaction.savepoint_rollback(before)
    return count


@pytest.mark.parametrize("first", STEPS)
def test_each_order_of_arrival_is_told_once_after_the_payment_and_ends_alike(order: Order, first: str):
    assert walk(order, first) == 326  # the orders of arrival of one to six steps that begin with it


def parcel(quantity: int, **more: Any) -> dict[str, Any]:
    return {"shipment": {"reference": "P-1", "lines": [{"item": 0, "quantity": quantity}], **more}}


def tea(quantity: int) -> dict[str, Any]:
    return {"items": [{"sku": "TEA", "name": "Tea", "quantity": quantity, "unitAmount": 100}]}


DELIVERED = {"deliveredAt": "2026-11-21T10:00:00Z"}
#: What another system reports of its order, in its order, and the fulfilment after all of it.
STORIES = {
    "items grow after the parcel": (
        [("paid", tea(3)), ("shipped", tea(3) | parcel(3)), ("paid", tea(9))],
        "part_shipped",
    ),
    "items shrink to the parcel": (
        [("paid", tea(9)), ("shipped", tea(9) | parcel(3, **DELIVERED)), ("paid", tea(3))],
        "delivered",
    ),
    "a completion after a part": (
        [("paid", tea(3)), ("shipped", tea(3) | parcel(1, **DELIVERED)), ("completed", tea(3))],
        "delivered",
    ),
    "a completion and a return": (
        [
            ("paid", tea(3)),
            ("shipped", tea(3) | parcel(1)),
            ("completed", tea(3)),
            ("shipped", tea(3) | parcel(1, returnedAt="2026-11-22T10:00:00Z") | {"status": "completed"}),
        ],
        "none",
    ),
    "a cancellation after a parcel": (
        [("paid", tea(3)), ("shipped", tea(3) | parcel(1)), ("cancelled", tea(9))],
        "part_shipped",
    ),
}


@pytest.mark.parametrize(("story", "fulfilment"), STORIES.values(), ids=STORIES)
def test_another_systems_order_ends_alike_in_each_order_of_arrival(settings, story, fulfilment):
    settings.ORDER_SOURCES, settings.FAST_PATH = [SHOP], False
    for arrival in itertools.permutations(enumerate(story, 1)):
        id = new_id()
        for sequence, (change, data) in arrival:
            assert give(told(change, id, sequence, **data)) == "done"
        order = Order.objects.get(id=id)
        assert order.fulfilment == fulfilment, [sequence for sequence, _ in arrival]
