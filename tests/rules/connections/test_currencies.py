"""Which currencies of a platform are kept, and in how many decimals."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from shop_connections.currency import read_currency
from shop_connections.shop_order import ShopOrder
from shop_connections.woocommerce.read import read_order
from tests.kit.woocommerce import FakeShop
from tests.kit.words import Rejected


def read(currency: object, total: str, **fields: Any) -> ShopOrder:
    shop = FakeShop()
    document = shop.document(shop.place(total="10")) | {"currency": currency, "total": total} | fields
    order = read_order(json.dumps(document).encode(), locale="en")
    assert order is not None
    return order


@pytest.mark.parametrize("code", ["eur", "Eur", "EUR"])
def test_lower_case_is_raised(code):
    order = read(code, "49.90")
    assert (order.currency, order.total) == ("EUR", 4990)


@pytest.mark.parametrize("code", ["", "EU", "EURO", "E1R", "E R", "€", "ﬀi", 978, ["EUR"]])
def test_what_is_not_three_letters_makes_a_post_unusable(code):
    with pytest.raises(Rejected, match=r"^its currency is not three letters$"):
        read(code, "49.90")


@pytest.mark.parametrize("code", ["BTC", "btc", "QQQ"])
@pytest.mark.parametrize("total", ["0.0042", "12.345", "-0.001", "1e-3"])
def test_a_total_that_cannot_be_kept_makes_a_post_unusable(code, total):
    reason = f"its total has more than 2 decimals, and its currency {code.upper()} is not one of ISO 4217"
    with pytest.raises(Rejected, match=rf"^{reason}$"):
        read(code, total)


@pytest.mark.parametrize(("total", "kept"), [("12.50", 1250), ("12.5000", 1250), ("7", 700), ("1e2", 10000)])
def test_one_that_can_is_kept_in_any_currency(total, kept):
    order = read("PTS", total)
    assert (order.currency, order.total) == ("PTS", kept)


@pytest.mark.parametrize(
    ("code", "total", "kept"),
    [
        ("EUR", "49.9049", 4990),
        ("EUR", "49.905", 4991),
        ("JPY", "1200.50", 1201),
        ("KWD", "12.50049", 12500),
        ("HRK", "1.005", 101),  # no longer in use
        ("XAU", "0.0042", 0),
        ("CLF", "1.00005", 10001),
    ],
)
def test_an_amount_of_iso_4217_is_rounded(code, total, kept):
    assert read(code, total).total == kept


def test_so_are_those_of_lines_charges_and_refunds():
    order = read(
        "JPY",
        "1190.4",
        line_items=[
            {"id": 1, "name": "Tea", "quantity": 1, "subtotal": "1000.5", "total": "1000.5", "product_id": 7}
        ],
        shipping_lines=[{"method_title": "DHL", "total": "189.6", "total_tax": "0"}],
        refunds=[{"id": 9, "total": "-10.5"}],
    )
    assert order.total == 1190 and order.items[0]["unit_amount"] == 1001
    assert [charge["amount"] for charge in order.charges] == [190]
    assert [refund.amount for refund in order.refunds] == [11]


def test_an_unreadable_total_is_no_matter_of_the_currency():
    assert read_currency("btc", total=None) == "BTC"
    assert read_currency("btc", total=Decimal("9" * 15 + ".25")) == "BTC"
