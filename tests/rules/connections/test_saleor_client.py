"""Reading the orders of a Saleor from its API: each one once, whatever the shop answers."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from typing import Any

import pytest

from shop_connections.http import OutOfTime, ShopApi, ShopUnreachable
from shop_connections.saleor.client import PAGE_SIZE, SaleorApi, read_orders
from shop_connections.saleor.read import read_head
from shop_connections.shop_order import ReadOrder
from tests.kit.saleor import FakeSaleor
from tests.rules.connections.conftest import Talk

LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def shop() -> Iterator[FakeSaleor]:
    shop = FakeSaleor(seed=7)
    with shop.serve():
        yield shop


def read(shop: FakeSaleor, **options: Any) -> Iterator[ReadOrder]:
    values: dict[str, Any] = {"since": LONG_AGO, "is_private_allowed": True, "seconds": 60.0}
    values |= {"sleep": lambda _: None, "secret": shop.token, "key": shop.app, "address": shop.address}
    return iter(read_orders(**values | options))


def ids(orders: Iterator[ReadOrder]) -> list[str]:
    return [json.loads(body)["order"]["id"] for body, _ in orders]


def test_each_order_comes_once_over_pages(shop):
    placed = [shop.place() for _ in range(2 * PAGE_SIZE + 5)]
    assert ids(read(shop)) == placed
    assert {request["variables"]["first"] for request in shop.requests} == {PAGE_SIZE}


def test_those_that_did_not_change_and_those_that_are_too_young_are_left_out(shop):
    placed = [shop.place() for _ in range(4)]
    times = [dt.datetime.fromisoformat(shop.orders[id]["updatedAt"]) for id in placed]
    assert ids(read(shop, since=times[1], until=times[2])) == placed[1:3]


def test_an_order_whose_updated_at_stayed_is_found_by_its_last_event(shop):
    id = shop.place()
    parcel = shop.fulfill(id, 1, 0)
    since = shop.now + dt.timedelta(seconds=1)
    shop.now += dt.timedelta(minutes=1)
    assert ids(read(shop, since=since)) == []
    shop.track(id, parcel, "JD1")
    assert ids(read(shop, since=since)) == [id]


def test_the_time_of_an_order_is_that_of_the_request_by_the_shops_clock(shop):
    shop.place()
    offset = dt.timedelta(hours=3)
    ((body, _),) = read(shop, offset=offset)
    read_at = dt.datetime.fromisoformat(json.loads(body)["readAt"])
    assert abs(read_at + offset - dt.datetime.now(dt.UTC)) < dt.timedelta(minutes=1)


def test_after_its_time_it_says_where_it_goes_on(shop, monkeypatch):
    placed = [shop.place() for _ in range(3 * PAGE_SIZE)]
    whole, asked = ShopApi._ask, []

    def ask(self: ShopApi, url: str, body: bytes | None) -> Any:
        asked.append(url)
        if len(asked) > 2:
            raise OutOfTime("The time is over.")
        return whole(self, url, body)

    monkeypatch.setattr(ShopApi, "_ask", ask)
    seen, place = list[str](), None
    for _ in range(3):
        asked.clear()
        try:
            for body, _ in read(shop, place=place):
                seen.append(json.loads(body)["order"]["id"])
        except OutOfTime as end:
            place = json.loads(json.dumps(end.place))
        else:
            break
    assert seen == placed


def test_an_order_that_is_too_large_is_left_out_and_hides_no_other(shop, settings):
    small, large = shop.place(), shop.place(customerNote="x" * 20_000)
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10_000
    bodies = [body for body, _ in read(shop)]
    assert [body and read_head(body) is not None for body in bodies] == [True, b""] and small != large


@pytest.mark.parametrize(
    ("status", "body", "headers", "said"),
    [
        (200, {"data": None, "errors": [{"message": "No way"}]}, {}, "an error: No way"),
        (200, {"data": {"orders": None}, "errors": [{"message": "Partly"}]}, {}, "an error: Partly"),
        (400, {"errors": [{"message": "Cannot query field"}]}, {}, "Cannot query field"),
        (200, b"<html>", {}, "not in JSON"),
        (502, b"", {}, "status 502"),
        (200, b"[]", {}, "not in JSON"),
        (301, b"", {"Location": "https://other.example/graphql/"}, "redirects to other.example"),
        (503, b"", {"Retry-After": "3600"}, "asks to wait 3600 s"),
        (200, {"data": {"orders": {"edges": [], "pageInfo": {"hasNextPage": True}}}}, {}, "do not go on"),
    ],
)
def test_an_answer_without_orders_is_explained(shop, status, body, headers, said):
    shop.answers = [(status, body, headers)]
    with pytest.raises(ShopUnreachable, match=said):
        list(read(shop))


def test_a_token_that_is_not_known_any_more(shop):
    shop.token = "another"
    with pytest.raises(ShopUnreachable, match="refuses the app's token"):
        list(read(shop, secret="t" * 30))


def test_it_waits_if_the_shop_asks_for_it(shop):
    placed, slept = shop.place(), list[float]()
    shop.answers = [(429, {}, {"Retry-After": "7"})]
    assert ids(read(shop, sleep=slept.append)) == [placed] and slept == [7.0]


def test_the_token_goes_to_no_private_address_and_only_in_its_header(shop, talk: Talk):
    with pytest.raises(ShopUnreachable, match="must begin with https"):
        list(read(shop, is_private_allowed=False))
    with pytest.raises(ShopUnreachable, match="private address"):
        list(read(shop, is_private_allowed=False, address=shop.address.replace("http:", "https:")))
    address = talk(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    with pytest.raises(ShopUnreachable) as refusal:
        SaleorApi(address=f"{address}/graphql/", token="secret", is_private_allowed=True, seconds=5).ask(
            "{a}"
        )
    (request,) = talk.received
    assert request.startswith(b"POST /graphql/ HTTP/1.1\r\n") and b"Authorization: Bearer secret" in request
    assert "secret" not in str(refusal.value)
