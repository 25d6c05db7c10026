"""The admin's list of orders: newest first whoever owns them, also as a file, a period, and a search."""

from __future__ import annotations

import csv
import datetime as dt
import io
import uuid

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.kit.orders import make_order, make_orders
from tests.kit.plans import plan_of
from tests.kit.words import CHUNK, Order, read_database_time

pytestmark = pytest.mark.django_db
ORDERS = "/admin/orders/order/"
HOUR = dt.timedelta(hours=1)


def newest_first() -> list[Order]:
    return sorted(Order.objects.all(), key=lambda order: (order.created_at, order.id), reverse=True)


def listed(client: Client, **query: str) -> list[uuid.UUID]:
    return [order.id for order in client.get(ORDERS, query).context["cl"].result_list]


def downloaded(client: Client, **query: str) -> list[str]:
    content = client.get(f"{ORDERS}csv/", query).getvalue().decode("utf-8-sig")
    return [row["id"] for row in csv.DictReader(io.StringIO(content))]


def external(hours: float, **fields: object) -> Order:
    """Insert an order of another system, placed so many hours ago, whose id contains no time."""
    at = read_database_time() - hours * HOUR
    return make_order(**{"id": uuid.uuid4(), "source": "shop-a", "created_at": at} | fields)


def test_it_is_newest_first(admin_client):
    for number in range(60):
        external(number / 2) if number % 2 else make_order(
            created_at=read_database_time() - number * HOUR / 2
        )
    ids = [order.id for order in newest_first()]
    assert listed(admin_client) == ids[:50] and listed(admin_client, p="2") == ids[50:]


def test_its_file_has_each_order_once_in_the_same_order(admin_client):
    make_orders(2 * CHUNK + 100, owner="mixed")
    Order.objects.filter(reference__startswith="S-2").update(created_at=read_database_time() - 9 * HOUR)
    assert downloaded(admin_client) == [str(order.id) for order in newest_first()]


def test_each_part_of_the_file_of_a_period_reads_only_its_own_rows(admin_client):
    make_orders(8 * CHUNK, owner="mixed")
    with CaptureQueriesContext(connection) as queries:
        assert len(downloaded(admin_client, since="2020-01-01", until="2099-01-01")) == 8 * CHUNK
    found = [one["sql"] for one in queries.captured_queries if f"LIMIT {CHUNK}" in one["sql"]]
    assert len(found) > 8
    with connection.cursor() as cursor:  # because PostgreSQL may rather sort a table as small as this one
        cursor.execute("SET LOCAL enable_sort = off; SET LOCAL enable_seqscan = off")
    for plan in map(plan_of, found):
        assert plan.visited <= CHUNK and plan.buffers <= CHUNK + 20, plan


def test_its_periods_are_of_the_time_at_which_an_order_was_placed(admin_client):
    old, young = external(50), external(2)
    assert listed(admin_client, age="24h") == [young.id]
    assert listed(admin_client, age="7d") == [young.id, old.id]
    day = f"{old.created_at:%Y-%m-%d}"
    assert listed(admin_client, since=day, until=day) == [old.id]
    assert downloaded(admin_client, age="24h") == [str(young.id)]


def test_a_search_shows_the_newest_first(admin_client):
    orders = [external(hours, reference="A-7") for hours in (1, 30, 5, 40, 2)]
    ids = [order.id for order in sorted(orders, key=lambda order: order.created_at, reverse=True)]
    assert listed(admin_client, q="A-7") == listed(admin_client, q="ALICE@example.com") == ids
    for term in ("A-7", "alice@example.com"):
        hits = admin_client.get("/admin/search/", {"q": term}).context["hits"]
        assert [hit.key for hit in hits] == [f"order {id}" for id in ids]
