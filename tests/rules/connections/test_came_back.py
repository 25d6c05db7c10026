"""A customer who was erased and buys again is a customer like any other."""

from __future__ import annotations

import datetime as dt

import pytest

from shop_connections.compare import compare_shop, repair
from shop_connections.models import ConnectionPost
from shop_connections.process import process_waiting
from tests.kit.people import ANN, erase, grep
from tests.kit.plain_shop import body_of, plain_shop, post
from tests.kit.words import Order

__all__ = ["plain_shop"]
pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder"),
]


def placed(order_id: str, *, days_ago: float) -> bytes:
    at = dt.datetime.now(dt.UTC) - dt.timedelta(days=days_ago)
    return body_of(order_id, changes=[("placed", {"email": ANN, "placedAt": at.isoformat()})])


@pytest.mark.parametrize(("days_ago", "stored"), [(0, ["A-2"]), (1, [])])
def test_a_comparison_finds_a_lost_order_only_if_it_was_placed_after_the_erasure(
    plain_shop, monkeypatch, days_ago, stored
):
    assert post(placed("A-1", days_ago=1)).status_code == 202
    process_waiting(seconds=60)
    erase(ANN, force=True)
    plain_shop.refresh_from_db()
    lost = [placed("A-2", days_ago=days_ago)]
    monkeypatch.setattr("shop_connections.compare._read", lambda *_, **__: [(body, None) for body in lost])
    assert [each.order_id for each in compare_shop(plain_shop).missing] == stored
    assert bool(grep(ANN)) is bool(stored)
    repair(source=plain_shop.source)
    process_waiting(seconds=60)
    assert Order.objects.filter(email=ANN).count() == len(stored)
    assert not ConnectionPost.objects.missing().exists()
