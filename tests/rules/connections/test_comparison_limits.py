"""A comparison of all shops has bounds of time, begins where the last one ended, and runs in one process."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.utils import timezone

from shop_connections import compare
from shop_connections.compare import (
    COMPARED,
    EVERY,
    MOST_SECONDS,
    MOST_SHOP_SECONDS,
    Comparison,
    compare_all,
    compare_shop,
)
from shop_connections.encryption import encrypt
from shop_connections.http import OutOfTime, ShopApi
from shop_connections.models import ConnectionPost, ShopConnection
from tests.kit.http import serve
from tests.kit.plain_shop import KEY, SOURCE, connect
from tests.kit.races import together
from tests.kit.waiting import replace_time
from tests.kit.woocommerce import FakeShop
from tests.kit.words import Heartbeat

pytestmark = pytest.mark.django_db


def add(address: str, *, source: str = SOURCE) -> ShopConnection:
    return connect(
        source,
        secret=encrypt("secret"),
        address=address,
        api_key=encrypt("ck_fake"),
        api_secret=encrypt("cs_fake"),
        last_post_at=timezone.now(),
        created_at=timezone.now() - dt.timedelta(days=3),
    )


@pytest.fixture(autouse=True)
def _private(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.CONNECTION_KEY, settings.FAST_PATH, settings.CONNECTIONS_PRIVATE = [KEY], False, True


@pytest.fixture
def shop() -> Iterator[FakeShop]:
    shop = FakeShop(seed=7)
    with shop.serve() as address:
        add(address)
        yield shop


def row() -> ShopConnection:
    return ShopConnection.objects.get(source=SOURCE)


def end_after(monkeypatch: pytest.MonkeyPatch, pages: int) -> None:
    """Let the time be over after so many pages."""
    whole, asked = ShopApi._ask, []

    def ask(self: Any, url: str, body: bytes | None) -> Any:
        asked.append(url)
        if len(asked) > pages:
            raise OutOfTime("The time is over.")
        return whole(self, url, body)

    monkeypatch.setattr(ShopApi, "_ask", ask)


def test_one_whose_time_is_over_stores_what_it_found_and_goes_on_there(shop, monkeypatch):
    for _ in range(120):
        shop.place()
    end_after(monkeypatch, 1)
    comparison = compare_shop(row())
    assert (comparison.read, comparison.is_whole) == (50, False)
    assert ConnectionPost.objects.missing().count() == 50
    assert row().checked_at is None and row().check_problem == ""
    monkeypatch.undo()
    later = timezone.now()
    assert compare_shop(row()).is_whole
    assert len(shop.requests) == 1 + 2
    assert ConnectionPost.objects.missing().count() == 120
    assert row().unfinished is None
    checked_at = row().checked_at
    assert checked_at is not None and checked_at < later  # when the first of both began


def test_it_looks_at_the_time_between_orders(shop, monkeypatch):
    for _ in range(50):
        shop.place()
    judged: list[int] = []
    whole: Callable[..., bool] = compare._judge

    def judge(*arguments: Any, **more: Any) -> bool:
        judged.append(1)
        if len(judged) == 3:
            replace_time(monkeypatch, compare, monotonic=lambda: float("inf"))
        return whole(*arguments, **more)

    monkeypatch.setattr(compare, "_judge", judge)
    comparison = compare_shop(row())
    monkeypatch.undo()
    assert len(judged) == 3 and not comparison.is_whole
    assert ConnectionPost.objects.missing().count() == 3


def test_a_shop_that_answers_no_page_in_time_is_a_problem(shop, monkeypatch):
    end_after(monkeypatch, 0)
    compare_all()
    assert row().check_problem == "The time is over." and row().unfinished is None


def test_an_order_with_too_many_bytes_is_named(shop):
    shop.place(meta_data=[{"key": "k", "value": "x" * 1_000_000}])
    shop.place()
    assert len(compare_shop(row()).missing) == 1
    assert (row().left_out, row().check_problem) == (1, "")
    assert row().checked_at is not None


@pytest.mark.parametrize(
    "location", ["https://[::1", "https:///orders", "https://a:99999/", "/wp-json/\x01", ""]
)
def test_a_shop_that_redirects_to_no_address_fails_alone(shop, location):
    with serve(lambda *_: (302, {}, {"Location": location})) as address:
        add(address, source="shop-a")
        shop.place()
        compare_all()
    assert ShopConnection.objects.get(source="shop-a").check_problem
    assert ConnectionPost.objects.missing().count() == 1


def test_a_fault_of_ours_fails_one_shop_alone(shop, monkeypatch):
    add(shop.address, source="shop-a")
    whole: Callable[..., Comparison] = compare.compare_shop

    def fail(shop: ShopConnection, **options: Any) -> Comparison:
        return whole(shop, **options) if shop.source == SOURCE else [][0]

    monkeypatch.setattr(compare, "compare_shop", fail)
    shop.place()
    compare_all()
    assert "the log says why" in ShopConnection.objects.get(source="shop-a").check_problem
    assert ConnectionPost.objects.missing().count() == 1


class TestTime:
    """The clock of these tests moves only when a shop is compared."""

    @pytest.fixture
    def tried(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, float]]]:
        for number in range(8):
            add("https://shop.example", source=f"shop-{number}")
        now, tried = [0.0], []

        def spend(shop: ShopConnection, *, seconds: float) -> None:
            tried.append((shop.source, seconds))
            now[0] += seconds

        replace_time(monkeypatch, compare, monotonic=lambda: now[0])
        monkeypatch.setattr(compare, "compare_shop", spend)
        yield tried
        monkeypatch.undo()

    def again(self) -> None:
        Heartbeat.objects.filter(name=COMPARED).update(beat_at=timezone.now() - EVERY)
        compare_all()

    def test_all_shops_have_300_seconds_and_one_60_while_others_wait(self, tried):
        self.again()
        assert sum(seconds for _, seconds in tried) == MOST_SECONDS
        assert {seconds for _, seconds in tried} == {MOST_SHOP_SECONDS}

    def test_the_last_one_has_what_is_left(self, tried):
        ShopConnection.objects.exclude(source__in=["shop-0", "shop-1"]).delete()
        self.again()
        assert tried == [("shop-0", 60.0), ("shop-1", 240.0)]

    def test_the_next_comparison_begins_with_the_shop_after_the_last_one(self, tried):
        self.again()
        self.again()
        names = [int(source[-1]) for source, _ in tried]
        assert names == [0, 1, 2, 3, 4, 5, 6, 7, 0, 1]


@pytest.mark.django_db(transaction=True)
def test_of_several_workers_one_compares(monkeypatch):
    add("https://shop.example")
    compared: list[str] = []
    monkeypatch.setattr(compare, "compare_shop", lambda shop, **_: compared.append(shop.source))
    monkeypatch.setattr(compare, "is_due", lambda: True)  # as if all had asked at the same moment
    together(4, lambda _: compare_all())
    assert compared == [SOURCE]
