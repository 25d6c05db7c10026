"""Twenty baskets by the API and by events: all that an e-mail shows of each adds up to its total."""

from __future__ import annotations

from typing import Any

import pytest

from notifications.content.render_files import RenderedEmail
from orders.breakdown import break_down
from tests.kit.api import api, assert_problem, order_body
from tests.kit.baskets import BASKETS, LINES, Basket, add_up
from tests.kit.events import give, told
from tests.kit.words import EmailNotification, Order
from web.api.fields import camel

__all__ = ["api"]  # a fixture

ALL = [basket.with_lines(count) for basket in BASKETS for count in LINES]
BY_NAME = {basket.name: basket for basket in BASKETS}
EXACT = [basket for basket in ALL if basket.is_for_api]


def named(basket: Basket) -> str:
    return basket.name


def in_event(entries: Any) -> list[dict[str, Any]]:
    return [{camel(name): value for name, value in entry.items()} for entry in entries]


def reported(basket: Basket, **data: Any) -> dict[str, Any]:
    values = {
        "items": in_event(basket.items),
        "charges": list(basket.charges),
        "totalAmount": basket.total,
        "currency": basket.currency,
        **data,
    }
    if basket.refunded:
        is_all = basket.refunded == basket.total
        values |= {"refundedAmount": basket.refunded, "amount": basket.refunded}
        return told("refunded" if is_all else "part_refunded", "A-1", 1, **values)
    return told("paid", "A-1", 1, **values)


def newest() -> RenderedEmail:
    email = EmailNotification.objects.latest("id")
    return RenderedEmail(email.subject, email.body, email.body_text)


def check(basket: Basket) -> None:
    """Add up what the newest e-mail shows."""
    text, page = add_up(newest(), currency=basket.currency)
    assert text == page
    assert text.total == basket.total
    if text.parts:
        assert sum(text.parts) == basket.total
    else:
        assert not basket.items and not basket.charges
    if basket.refunded:
        assert text.below["Refunded"] == basket.refunded
        assert text.below["Refunded"] + text.below.get("Not refunded", 0) == basket.total


def test_there_are_twenty():
    assert len({basket.name for basket in BASKETS}) == len(BASKETS) == 20


@pytest.mark.django_db
@pytest.mark.parametrize("basket", ALL, ids=named)
def test_an_email_of_another_systems_order_adds_up(basket, settings):
    settings.ORDER_SOURCES = ["shop-a"]
    assert give(reported(basket)) == "done"
    check(basket)
    order = Order.objects.get()
    assert len(order.items) <= 200 and len(order.charges) <= 20
    is_odd = basket.name.startswith("a gap")
    assert len(order.warnings) == is_odd


@pytest.mark.parametrize("basket", EXACT, ids=named)
def test_an_email_of_our_own_order_adds_up(api, basket):
    body = order_body(
        total_amount=basket.total, currency=basket.currency, items=basket.items, charges=basket.charges
    )
    response = api.post("/api/v1/orders", body)
    if len(basket.items) > 200:
        assert_problem(response, 400, "validation")
        return
    assert response.status_code == 201, response.content
    path = response.headers["Location"]
    assert api.post(f"{path}/pay").status_code == 200
    if basket.refunded:
        assert api.post(f"{path}/refund", {"amount": basket.refunded}).status_code == 200
    check(basket)


def test_the_api_refuses_a_sum_that_is_not_the_total(api):
    gap = BY_NAME["a gap"]
    body = order_body(total_amount=gap.total, items=gap.items, charges=gap.charges)
    problem = assert_problem(api.post("/api/v1/orders", body), 400, "validation")
    assert problem["errors"][0]["pointer"] == "#/total_amount"
    assert problem["errors"][0]["detail"] == "The items and charges give 5580, which is 4410 less."
    rounded = BY_NAME["round at subtotal"]
    body = order_body(total_amount=rounded.total, items=rounded.items, charges=rounded.charges)
    assert "1000, which is 1 more." in api.post("/api/v1/orders", body).content.decode()


@pytest.mark.django_db
def test_a_gap_is_told_once_for_an_order(settings):
    settings.ORDER_SOURCES = ["shop-a"]
    gap = BY_NAME["a gap"]
    data = {"items": in_event(gap.items), "charges": list(gap.charges), "totalAmount": gap.total}
    for sequence, change in enumerate(["placed", "paid", "completed"], start=1):
        assert give(told(change, "A-1", sequence, **data)) == "done"
    (warning,) = Order.objects.get().warnings
    assert "The items and charges give 5580, not 9990" in warning["text"]
    assert "Other charges: €44.10" in newest().body_text
    less = data | {"totalAmount": 5000}
    assert give(told("paid", "A-2", 1, **less)) == "done"
    assert "Other reductions: -€5.80" in newest().body_text


@pytest.mark.django_db
def test_more_lines_than_are_stored_are_goods_and_no_charge(settings):
    settings.ORDER_SOURCES = ["shop-a"]
    basket = BY_NAME["items alone, shipping in the total"].with_lines(250)
    assert give(reported(basket)) == "done"
    *_, rest = Order.objects.get().items
    assert (rest["name"], rest["quantity"], rest["unit_amount"]) == ("51 further items", 1, 51_00)
    text = newest().body_text
    assert "and 230 more items: €230.00" in text
    assert "Shipping, taxes and other charges: €5.90" in text


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("name", "shown", "hidden"),
    [
        ("3 for 10.00", ["3 × Soap: €10.00"], "€3.33"),
        ("7 for 100.00", ["7 × Candle: €100.00"], "€14.29"),
        ("gift card", ["Gift card (…77QA): -€19.90"], "GIFT"),
        (
            "tax in prices, a coupon of 10 %, shipping",
            ["Discount (TEN): -€4.99", "Shipping (DHL): €5.90", "includes VAT 19 %: €8.11"],
            "other charges",
        ),
        ("charges without items", ["- Items: €54.00", "Discount: -€4.00"], "Rounding"),
        ("round at subtotal", ["VAT: €1.67", "Rounding: -€0.01"], "other"),
        ("all free", ["Shipping (Free shipping): €0.00", "There was nothing to pay."], "your payment"),
        ("a line that takes money off", ["Discount (Loyalty): -€19.90", "includes tax: €4.79"], "other"),
        ("items alone, discount in the total", ["Other reductions: -€9.90"], "Shipping"),
        ("charges beyond 20", ["Fee 18: €0.01", "Fee: €0.11"], "Fee 19"),
    ],
)
def test_it_names_what_the_shop_named(name, shown, hidden, settings):
    settings.ORDER_SOURCES = ["shop-a"]
    assert give(reported(BY_NAME[name])) == "done"
    email = newest()
    assert [line for line in shown if line not in email.body_text] == []
    assert hidden not in email.body_text and hidden not in email.body_html


@pytest.mark.django_db
def test_a_parcels_lines_follow_their_items(settings):
    """An item that takes money off becomes a discount, so the items after it move up."""
    settings.ORDER_SOURCES = ["shop-a"]
    basket = BY_NAME["a line that takes money off"]
    parcel = {"reference": "P-1", "lines": [{"item": 1, "quantity": 2}]}
    data = {"items": in_event(basket.items), "totalAmount": 3000, "shipment": parcel}
    assert give(told("shipped", "A-1", 1, **data)) == "done"
    assert "- 2 × Green tea" in newest().body_text


@pytest.mark.parametrize("most", [0, 1, 20, 300])
@pytest.mark.parametrize("basket", ALL, ids=named)
def test_the_rows_add_up_however_many_are_shown(basket, most):
    charges = list(basket.charges)
    parts = break_down(items=basket.items, charges=charges, total=basket.total, most=most)
    shown = [line.amount for line in parts.lines] + [row.amount for row in parts.rows] + [parts.more_amount]
    assert sum(shown) == (basket.total if basket.items or charges else 0)
    assert len(parts.lines) + parts.more == len(basket.items)
