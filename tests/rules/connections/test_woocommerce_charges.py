"""What an order of WooCommerce costs and what its customer gave, as the shop's own e-mails show it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orders.breakdown import break_down, fold_items
from shop_connections.shop_order import ShopOrder
from shop_connections.woocommerce.read import read_order
from tests.kit.seen_orders import Seen
from tests.kit.woocommerce import FakeShop

SHIPPING_TO = {
    "first_name": "Ann",
    "last_name": "Lee",
    "company": "Lee &amp; Co",
    "address_1": "Hafenstra&#223;e 9",
    "address_2": "",
    "city": "Hamburg",
    "state": "DE-HH",
    "postcode": "20457",
    "country": "DE",
}
BILLING = {"first_name": "Ann", "last_name": "Lee", "email": "ann@example.com"}


def line(name: str, quantity: float, subtotal: str, tax: str = "0", total: str = "", **more: Any) -> Any:
    values = {"id": 1, "name": name, "sku": name, "product_id": 7, "variation_id": 0, "quantity": quantity}
    sums = {"subtotal": subtotal, "subtotal_tax": tax, "total": total or subtotal, "total_tax": tax}
    return values | sums | more


def read(locale: str = "en", /, **fields: Any) -> ShopOrder:
    shop = FakeShop()
    document = shop.document(shop.place()) | fields
    order = read_order(json.dumps(document).encode(), locale=locale)
    assert order is not None
    return order


def rows(order: ShopOrder) -> list[tuple[str, str, int]]:
    """Return the rows between the lines and the total, which must be one of them."""
    assert order.items is not None and order.charges is not None and order.total is not None
    parts = break_down(items=fold_items(order.items), charges=order.charges, total=order.total)
    sums = [line.amount for line in parts.lines] + [row.amount for row in parts.rows] + [parts.more_amount]
    assert sum(sums) == order.total
    return [(row.kind, row.label, row.amount) for row in (*parts.rows, *parts.included)]


def test_prices_with_tax_have_it_in_all_amounts():
    order = read(
        prices_include_tax=True,
        total="50.81",
        total_tax="8.11",
        line_items=[line("Tea", 2, "41.93", "7.97", "37.74", total_tax="7.17")],
        coupon_lines=[{"code": "ten", "discount": "4.19", "discount_tax": "0.80"}],
        shipping_lines=[{"method_title": "DHL", "total": "4.96", "total_tax": "0.94"}],
        tax_lines=[{"label": "MwSt.", "rate_percent": 19, "tax_total": "7.17", "shipping_tax_total": "0.94"}],
    )
    assert (order.items[0]["unit_amount"], "total_amount" in order.items[0]) == (2495, False)
    assert rows(order) == [("discount", "ten", -499), ("shipping", "", 590), ("tax", "MwSt. 19 %", 811)]
    assert order.charges[-1]["included"] is True
    assert order.details["delivery_method"] == "DHL"


def test_prices_without_tax_have_it_as_a_charge():
    order = read(
        total="59.43",
        total_tax="9.49",
        line_items=[line("Tea", 2, "44.04", "8.37")],
        shipping_lines=[{"method_title": "DHL", "total": "5.90", "total_tax": "1.12"}],
        tax_lines=[
            {"label": "19% VAT", "rate_percent": 19, "tax_total": "8.37", "shipping_tax_total": "1.12"}
        ],
    )
    assert rows(order) == [("shipping", "", 590), ("tax", "19% VAT", 949)]


def test_a_tax_without_its_lines_is_one():
    assert rows(read(total="59.38", total_tax="9.48"))[-1] == ("tax", "", 948)


def test_three_for_ten_and_seven_for_a_hundred_keep_their_sum():
    order = read(total="110.00", line_items=[line("Soap", 3, "10.00"), line("Candle", 7, "100.00")])
    assert [(item["unit_amount"], item.get("total_amount")) for item in order.items] == [
        (333, 1000),
        (1429, 10000),
    ]
    assert rows(order) == []


@pytest.mark.parametrize(
    ("fields", "row"),
    [
        (
            {"total": "30.00", "fee_lines": [{"name": "Gift card", "total": "-19.90"}]},
            ("discount", "Gift card", -1990),
        ),
        (
            {"total": "52.90", "fee_lines": [{"name": "Gift &amp; wrap", "total": "3.00"}]},
            ("fee", "Gift & wrap", 300),
        ),
        ({"total": "39.90", "discount_total": "10.00"}, ("other_reductions", "", -1000)),
    ],
)
def test_fees_are_charges_or_discounts(fields, row):
    assert rows(read(**fields)) == [row]


def test_a_line_that_takes_money_off_is_a_discount_with_its_name():
    lines = [line("Tea", 2, "49.90"), line("Loyalty", 1, "-10.00"), line("Returned", -1, "-5.00")]
    order = read(total="34.90", line_items=lines)
    assert [item["name"] for item in order.items] == ["Tea"]
    assert rows(order) == [("discount", "Loyalty", -1000), ("discount", "Returned", -500)]


def test_a_total_that_staff_lowered_is_a_discount_without_a_name():
    order = read(total="39.90", line_items=[line("Tea", 2, "49.90", total="39.90")])
    assert rows(order) == [("discount", "", -1000)]


def test_a_bundle_has_its_children():
    lines = [line("Set", 1, "49.90"), line("Cup", 2, "0"), line("Pot", 1, "0.00")]
    order = read(line_items=lines)
    assert [item["unit_amount"] for item in order.items] == [4990, 0, 0] and rows(order) == []


def test_lines_beyond_what_is_stored_are_one_item():
    order = read(total="250.00", line_items=[line(f"Bead {number}", 1, "1.00") for number in range(250)])
    assert rows(order) == []
    assert fold_items(order.items)[-1]["name"] == "51 further items"


@pytest.mark.parametrize(("total", "stored"), [("-5.00", 0), ("0.00", 0), ("-0.001", 0)])
def test_a_negative_total_is_nothing_with_a_doubt(total, stored):
    order = read(total=total)
    assert order.total == stored
    assert len(order.doubts) == (total == "-5.00")
    if order.doubts:
        assert "-500" in order.doubts[0]


def test_the_doubt_is_told_once():
    shop, here = FakeShop(), Seen()
    id = shop.place(total="-5.00", line_items=[])
    _, body = shop.deliveries()[-1]
    assert here.take(body) == ["order.paid"]
    shop.complete(id)
    assert here.doubts == ["total: The shop says -500 minor units of EUR. 0 is stored."]


class TestDetails:
    def test_an_address_is_written_from_its_parts(self):
        order = read("de", shipping=SHIPPING_TO, billing=BILLING | {"address_1": "1 Main", "city": "Leeds"})
        assert order.details["delivery_address"] == [
            "Ann Lee",
            "Lee & Co",
            "Hafenstraße 9",
            "20457 Hamburg",
            "Deutschland",
        ]
        assert order.details["billing_address"] == ["Ann Lee", "1 Main", "Leeds"]

    @pytest.mark.parametrize(
        ("country", "town"),
        [("US", "Hamburg, DE-HH 20457"), ("DE", "20457 Hamburg"), ("", "20457 Hamburg")],
    )
    def test_a_town_stands_as_its_country_writes_it(self, country, town):
        assert town in read(shipping=SHIPPING_TO | {"country": country}).details["delivery_address"]

    @pytest.mark.parametrize("locale", ["tlh", "xx-XX", "", "de-Nope", "zz_ZZ"])
    def test_a_language_that_has_no_names_of_countries_makes_no_order_unusable(self, locale):
        """A profile may have any language tag, and its e-mails are in English then."""
        line = read(locale, shipping=SHIPPING_TO).details["delivery_address"][-1]
        assert line in ("Germany", "Deutschland")

    def test_a_name_alone_is_no_address(self):
        assert read(shipping={"first_name": "Ann"}).details["delivery_address"] == []
        assert "delivery_address" not in read(shipping=None).details

    def test_a_note_is_one_line_and_no_card_is_shown(self):
        order = read(customer_note="Ring\r\ntwice\u202e", payment_method_title="Visa 4242 4242 4242 4242")
        assert order.details["customer_note"] == "Ring twice"
        assert order.details["payment_method"] == "Visa …4242"

    def test_a_corrected_address_is_stored_without_an_email_and_once(self):
        shop, here = FakeShop(), Seen()
        id = shop.place(shipping=SHIPPING_TO)
        assert here.take_all(shop) == ["order.paid"]
        shop.orders[id]["shipping"] = SHIPPING_TO | {"city": "Bremen"}
        shop.edit(id)
        assert here.take_all(shop) == ["(order.paid)"]
        assert "20457 Bremen" in here.order.details["delivery_address"]
        shop.edit(id)
        assert here.take_all(shop) == []
