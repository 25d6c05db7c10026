"""The time zone of an order of WooCommerce: the offset of the shop's clock on the order's day."""

from __future__ import annotations

import json

import pytest

from shop_connections.woocommerce.read import read_order
from tests.kit.seen_orders import Seen
from tests.kit.woocommerce import FakeShop

UTC = "2026-11-28T04:30:00"


@pytest.mark.parametrize(
    ("local", "utc", "offset"),
    [
        ("2026-11-27T20:30:00", UTC, "-08:00"),
        (UTC, UTC, "+00:00"),
        ("2026-11-28T10:15:00", UTC, "+05:45"),
        ("2026-07-28T06:30:00", "2026-07-28T04:30:00", "+02:00"),  # Berlin in summer
        ("2026-11-28T18:30:00", UTC, "+14:00"),
        ("2026-11-28T18:31:00", UTC, None),
        ("2026-11-27T20:30:01", UTC, None),
        ("2026-11-27T20:30:00-08:00", UTC, None),
        ("2026-11-27T20:30:00", None, None),
        (None, UTC, None),
        ("yesterday", UTC, None),
        (5, UTC, None),
        ("9999-12-31T23:59:59", "0001-01-01T00:00:00", None),
    ],
)
def test_it_is_the_local_time_minus_that_in_utc(local, utc, offset):
    shop = FakeShop()
    document = shop.document(shop.place()) | {"date_created": local, "date_created_gmt": utc}
    order = read_order(json.dumps(document).encode(), locale="en")
    assert order is not None and order.details.get("time_zone") == offset


def test_it_is_stored_and_a_second_post_has_no_news():
    shop, here = FakeShop(), Seen()
    id = shop.place()
    assert here.take_all(shop) == ["order.paid"]
    assert here.order.details == {"time_zone": "+01:00"}
    shop.edit(id)
    assert here.take_all(shop) == []
