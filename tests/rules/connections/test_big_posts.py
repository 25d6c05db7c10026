"""A post of any size below 1 MB has its effect, in few changes and little time."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from shop_connections import process
from shop_connections.changes import MOST_CHANGES
from shop_connections.models import ConnectionPost
from shop_connections.process import process_waiting
from tests.kit.plain_shop import SOURCE, body_of, plain_shop, post
from tests.kit.woocommerce import FakeShop
from tests.kit.words import EmailNotification, Order, our_id
from tests.rules.connections.test_woocommerce_posts import send, shop, state_of

__all__ = ["plain_shop", "shop"]
pytestmark = pytest.mark.django_db


def post_refunds(shop: FakeShop, id: int, number: int) -> None:
    """Refund a cent so many times, and post the order once."""
    for _ in range(number):
        shop.refund(id, "0.01")
    shop.waiting = shop.waiting[-1:]
    for headers, body in shop.deliveries():
        assert len(body) < 1_000_000
        assert send(headers, body) == 202


def place(shop: FakeShop) -> int:
    id = shop.place(total="1000.00")
    shop.deliver(send)
    assert process_waiting(seconds=60) == "none"
    return id


def rows_written() -> dict[str, int]:
    """Return how many rows this transaction has inserted and updated, by table."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT relname, n_tup_ins + n_tup_upd FROM pg_stat_xact_user_tables")
        return dict(cursor.fetchall())


def count(shop: FakeShop, number: int) -> tuple[int, int]:
    """Return the statements of a post with so many refunds, and the versions of its order's row."""
    id = place(shop)
    post_refunds(shop, id, number)
    before = rows_written()["orders"]
    with CaptureQueriesContext(connection) as queries:
        process_waiting(seconds=600)
    assert state_of(id)[1] == number
    return len(queries), rows_written()["orders"] - before


def test_statements_grow_as_the_changes_do_and_the_orders_row_is_written_once(shop):
    """Each version of a row lengthens every later statement of the transaction."""
    (few, versions), (many, versions_of_many) = count(shop, 20), count(shop, 200)
    assert versions == versions_of_many == 1
    assert many < few * 10


def test_a_new_order_is_written_once_more_than_it_is_inserted(shop):
    id = shop.place(total="1000.00")
    post_refunds(shop, id, 100)
    before = rows_written().get("orders", 0)
    process_waiting(seconds=600)
    assert rows_written()["orders"] - before == 2
    assert state_of(id)[:2] == ("part_refunded", 100)


def test_a_post_with_as_many_changes_as_are_allowed_tells_each(shop):
    id = place(shop)
    post_refunds(shop, id, MOST_CHANGES)
    process_waiting(seconds=600)
    assert state_of(id) == (
        "part_refunded",
        MOST_CHANGES,
        ("order.paid", *["order.part_refunded"] * MOST_CHANGES),
    )


def test_of_a_post_with_more_the_rest_is_one_change_without_emails_and_a_warning_names_their_number(shop):
    id = place(shop)
    version = Order.objects.get().version
    post_refunds(shop, id, 3000)
    process_waiting(seconds=600)
    order = Order.objects.get()
    assert state_of(id)[:2] == ("part_refunded", 3000)
    assert EmailNotification.objects.count() == 1 + MOST_CHANGES
    assert order.version == version + MOST_CHANGES + 1
    texts = [line["text"] for line in order.warnings]
    assert [text.removeprefix("changes: ") for text in texts if text.startswith("changes")] == [
        "The post has 3,000 of them. All but the first 200 are stored as one, without e-mails."
    ]
    assert not ConnectionPost.objects.unusable().exists()


def test_what_comes_after_such_a_post_is_told_again(shop):
    id = place(shop)
    post_refunds(shop, id, 300)
    process_waiting(seconds=600)
    shop.edit(id)
    shop.ship(id, "JD0001")
    shop.refund(id, "5.00")
    shop.deliver(send)
    process_waiting(seconds=60)
    assert Counter(state_of(id)[2]) == {
        "order.paid": 1,
        "order.part_refunded": MOST_CHANGES + 1,
        "order.shipped": 1,
    }


@pytest.mark.parametrize(
    "filling",
    [
        {"refunds": [{"id": number + 1, "total": "-0.01"} for number in range(15_000)]},
        {
            "line_items": [
                {"id": number + 1, "name": "Tea", "quantity": 1, "total": "1.00"} for number in range(200)
            ],
            "refunds": [{"id": number + 1, "total": "-0.01"} for number in range(15_000)],
        },
        {"meta_data": [{"key": f"k{number}", "value": [[[]]]} for number in range(20_000)]},
        {"line_items": [{"id": number + 1, "quantity": 1, "total": "1"} for number in range(18_000)]},
        {
            "meta_data": [
                {
                    "key": "_wc_shipment_tracking_items",
                    "value": [{"tracking_number": f"P{number}"} for number in range(20_000)],
                }
            ]
        },
        {"billing": {"email": "ann@example.com", "first_name": "A" * 900_000}},
        {"number": "9" * 900_000},
    ],
)
def test_no_order_becomes_unusable_by_its_size(shop, filling):
    id = place(shop)
    shop.edit(id, **filling)
    for headers, body in shop.deliveries():
        assert 100_000 < len(body) < 1_000_000
        assert send(headers, body) == 202
    with CaptureQueriesContext(connection) as queries:
        process_waiting(seconds=60)
    assert not ConnectionPost.objects.unusable().exists()
    assert len(queries) < 1500
    assert Order.objects.get().reported_at is not None


def test_changes_that_take_too_long_are_stored_as_one(plain_shop, monkeypatch):
    names = ["placed", "paid", "completed"]
    post(body_of("A-1001", *names))
    monkeypatch.setattr(process, "_CHANGES_SECONDS", -1.0)
    assert process.process_next(SOURCE) == "done"
    order = Order.objects.get(id=our_id(source=SOURCE, id="A-1001"))
    assert order.status == "completed" and not EmailNotification.objects.exists()
    assert "changes: The post has 1 of them." in json.dumps(order.warnings)


def test_a_change_after_an_error_begins_with_the_stored_row(plain_shop, monkeypatch):
    """The row that an undone post held must not be taken for that of the next one."""
    body: Any = body_of("A-1001", changes=[("placed", {}), ("paid", {"currency": "12"})])
    post(body)
    process_waiting(seconds=60)
    post(body_of("A-1001", "placed"))
    process_waiting(seconds=60)
    assert Order.objects.get().version == 1
    assert ConnectionPost.objects.get(done_at=None).reason
