"""What is read of an order of Saleor. The bodies are those of a real Saleor, with the app's query."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shop_connections.saleor.read import READ_AT, read_head, read_order
from shop_connections.shop_order import ShopOrder
from tests.kit.saleor import FakeSaleor, money, taxed
from tests.kit.words import Rejected

BODIES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("saleor_bodies.json").read_text())
SHIPPING = {"kind": "shipping", "amount": 490}


def read(document: dict[str, Any]) -> ShopOrder:
    order = read_order(json.dumps(document).encode(), locale="en")
    assert order is not None
    return order


def order(**fields: Any) -> ShopOrder:
    """Return an order of the fake with other members, as it is read."""
    return read(document(**fields))


def document(**fields: Any) -> dict[str, Any]:
    shop = FakeSaleor()
    return shop.made("OrderUpdated", shop.place(**fields))


@pytest.mark.parametrize(
    ("name", "status", "has", "refunds", "parcels"),
    [
        ("placed", "pending", "", [], []),
        ("parcel2-silent", "paid", "paid", [], [("", "", 1, None), ("JD2", "", 1, None)]),
        (
            "tracking1-corrected",
            "paid",
            "paid",
            [],
            [("", "https://t.example/JD1X", 1, None), ("JD2", "", 1, None)],
        ),
        (
            "parcel3-completes",
            "completed",
            "paid completed",
            [],
            [("", "https://t.example/JD1X", 1, None), ("JD2", "", 1, None), ("JD3", "", 1, True)],
        ),
        (
            "refund-part",
            "completed",
            "paid completed",
            [500],
            [("", "https://t.example/JD1X", 1, None), ("JD2", "", 1, None), ("JD3", "", 1, None)],
        ),
        # The parcel that came back has vanished. The lines of the others may have moved, too.
        ("return-one", "completed", "paid completed", [500], [("JD2", "", 0, None), ("JD3", "", 0, None)]),
        ("replace-one", "completed", "paid completed", [500], [("JD3", "", 0, None)]),
        ("tx-part-charged", "paid", "", [], []),
        ("fulfilment-cancelled", "paid", "paid", [], [("", "", 1, False)]),
        ("old-refund-products", "pending", "paid", [500, 1000], []),
        ("reissue-sent", "completed", "completed", [], [("R2", "", 1, True)]),
        ("refund-all", "paid", "paid", [3490], []),  # the rest was charged back
    ],
)
def test_the_bodies_of_a_real_one(name, status, has, refunds, parcels):
    there = read(BODIES[name])
    assert there.status == status
    assert (there.paid_at is not None, there.completed_at is not None) == ("paid" in has, "completed" in has)
    assert [refund.amount for refund in there.refunds or ()] == refunds
    read_parcels = [
        (each.tracking_number, each.tracking_url, len(each.lines), each.notify) for each in there.parcels
    ]
    assert read_parcels == parcels
    assert there.doubts == () and there.email == "ann.lee@example.com" and there.name == "Ann Lee"


@pytest.mark.parametrize(
    ("name", "total", "charges"),
    [
        ("placed", 4490, [SHIPPING]),
        ("voucher", 4090, [{"kind": "discount", "amount": -400, "label": "SPRING"}, SHIPPING]),
        ("voucher-shipping", 4000, [{"kind": "shipping", "amount": 0}]),
        ("gift-card", 2990, [SHIPPING, {"kind": "gift_card", "amount": -1500, "label": "FC2B"}]),
        (
            "manual-discount",
            2790,
            [{"kind": "discount", "amount": -602}, {"kind": "shipping", "amount": 392}],
        ),
    ],
)
def test_what_the_customer_pays_of_a_real_one(name, total, charges):
    there = read(BODIES[name])
    assert (there.total, list(there.charges or ())) == (total, charges)
    assert sum(item["quantity"] * item["unit_amount"] for item in there.items or ()) == 4000 - 1000 * (
        name == "manual-discount"
    )


class TestAmounts:
    def test_prices_without_tax_have_the_tax_as_a_charge(self):
        there = order(displayGrossPrices=False)
        charges = {charge["kind"]: charge["amount"] for charge in there.charges or ()}
        assert charges["tax"] == 4990 - round(4990 / 1.19) and charges["shipping"] == round(490 / 1.19)
        assert not any("included" in charge for charge in there.charges or ())

    def test_prices_with_tax_include_it(self):
        taxes = [charge for charge in order().charges or () if charge["kind"] == "tax"]
        assert taxes == [{"kind": "tax", "amount": 4990 - round(4990 / 1.19), "included": True}]

    def test_a_line_that_costs_more_than_before_its_discounts_has_no_discount(self):
        lines = document()["order"]["lines"]
        lines[0]["undiscountedTotalPrice"] = taxed(10)
        there = order(lines=lines)
        assert [charge["kind"] for charge in there.charges or ()] == ["shipping", "tax"]

    def test_a_sum_beyond_32_bits(self):
        total = {"currency": "IDR", **taxed(25_000_000)}
        assert order(total=total).total == 2_500_000_000

    @pytest.mark.parametrize(("currency", "minor"), [("JPY", 50), ("KWD", 49900), ("EUR", 4990)])
    def test_decimals(self, currency, minor):
        assert order(total={"currency": currency, **taxed(49.9)}).total == minor

    def test_three_for_ten(self):
        lines = document()["order"]["lines"][:1]
        lines[0] |= {"quantity": 3, "totalPrice": taxed(10), "undiscountedTotalPrice": taxed(10)}
        (item,) = order(lines=lines).items or ()
        assert (item["unit_amount"], item["total_amount"]) == (333, 1000)


def events(*entries: tuple[str, str, float, int]) -> list[dict[str, Any]]:
    """Return a transaction. An entry has the type, the reference, the amount and the minute."""
    return [
        {
            "events": [
                {
                    "id": f"E{place}",
                    "type": type,
                    "pspReference": reference,
                    "amount": money(amount),
                    "createdAt": f"2027-01-01T10:{minute:02}:00+00:00",
                }
                for place, (type, reference, amount, minute) in enumerate(entries)
            ]
        }
    ]


class TestPayments:
    @pytest.mark.parametrize(
        ("entries", "minute"),
        [
            ([("CHARGE_SUCCESS", "", 20, 1)], None),
            ([("CHARGE_SUCCESS", "", 20, 1), ("CHARGE_SUCCESS", "", 29.9, 3)], 3),
            ([("CHARGE_SUCCESS", "a", 49.9, 1), ("CHARGE_FAILURE", "a", 49.9, 2)], None),
            ([("CHARGE_FAILURE", "a", 49.9, 1), ("CHARGE_SUCCESS", "a", 49.9, 2)], 2),
            ([("CHARGE_SUCCESS", "a", 49.9, 1), ("CHARGE_SUCCESS", "a", 49.9, 2)], 2),
            ([("AUTHORIZATION_SUCCESS", "a", 49.9, 1)], None),
        ],
    )
    def test_it_is_paid_with_its_last_charge(self, entries, minute):
        there = order(is_paid=False, transactions=events(*entries))
        assert (there.paid_at and there.paid_at.minute) == minute

    def test_a_granted_refund_pays_nothing_and_nothing_to_pay_is_paid(self):
        assert order(is_paid=False, chargeStatus="FULL").paid_at is None
        free = order(is_paid=False, total={"currency": "EUR", **taxed(0)})
        assert free.paid_at == free.created_at

    @pytest.mark.parametrize(
        ("entries", "amounts"),
        [
            ([("REFUND_SUCCESS", "a", 5, 1), ("REFUND_SUCCESS", "b", 6, 2)], [500, 600]),
            ([("REFUND_SUCCESS", "b", 6, 2), ("REFUND_SUCCESS", "a", 5, 1)], [500, 600]),
            ([("REFUND_SUCCESS", "a", 5, 1), ("REFUND_FAILURE", "a", 5, 2)], []),
            ([("REFUND_REQUEST", "a", 5, 1)], []),
            (
                [("REFUND_SUCCESS", "a", 5, 1), ("REFUND_SUCCESS", "b", 6, 2), ("REFUND_REVERSE", "c", 6, 3)],
                [500],
            ),
        ],
    )
    def test_refunds_are_those_that_succeeded_and_were_not_taken_back(self, entries, amounts):
        there = order(is_paid=False, transactions=events(*entries))
        assert [refund.amount for refund in there.refunds or ()] == amounts


class TestOrders:
    def test_an_event_was_read_when_it_was_issued_and_the_api_when_it_was_asked(self):
        event = document()
        posted = read(event)
        assert posted.modified_at is not None and posted.as_of == posted.modified_at
        asked = read({READ_AT: "2027-01-01T10:00:00+00:00", "order": event["order"]})
        assert asked.as_of is not None and asked.as_of.isoformat() == "2027-01-01T10:00:00+00:00"
        assert asked.modified_at is not None and asked.modified_at < asked.as_of

    @pytest.mark.parametrize(
        ("word", "locale"),
        [("DE", "de"), ("EN_GB", "en-gb"), ("PT_BR", "pt-br"), ("ZH_HANS_CN", "zh-hans-cn")],
    )
    def test_its_language(self, word, locale):
        assert order(languageCodeEnum=word).locale == locale

    def test_who_ordered(self):
        there = order(user={"id": "VXNlcjox"}, userEmail="bob@example.com")
        assert (there.user_id, there.email) == ("VXNlcjox", "bob@example.com")
        assert str(order(user=None).user_id).startswith("guest-")

    def test_its_details(self):
        details = order(customerNote="Ring\ntwice", languageCodeEnum="DE").details
        assert details["delivery_address"] == ["Ann Lee", "Hauptstr. 1", "10115 BERLIN", "Deutschland"]
        assert (details["delivery_method"], details["customer_note"]) == ("DHL", "Ring twice")

    @pytest.mark.parametrize("body", [b"[]", b"{", b'{"readAt": "x", "order": {"id": 7}}'])
    def test_a_body_without_an_order(self, body):
        with pytest.raises(Rejected):
            read_head(body)

    @pytest.mark.parametrize("body", [b"{}", b'{"__typename": "ProductUpdated", "order": {"id": "T3"}}'])
    def test_a_body_about_something_else(self, body):
        assert read_head(body) is None and read_order(body, locale="en") is None

    @pytest.mark.parametrize("odd", [None, "", "x", -1, 1e300, True, [], {}, [None], {"id": 1}, ["x", {}]])
    def test_what_cannot_be_read_hides_nothing_else(self, odd):
        whole = BODIES["parcel3-completes"]
        for path in _paths(whole):
            body = copy.deepcopy(whole)
            holder: Any = body
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = odd
            try:
                there = read_order(json.dumps(body).encode(), locale="en")
            except Rejected:
                assert path[-1] in ("id", "order", "currency", "total"), path
            else:
                assert there is None or path[-1] == "__typename" or there.id


def _paths(value: Any) -> Iterator[tuple[Any, ...]]:
    members = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, member in members:
        yield (key,)
        for path in _paths(member):
            yield (key, *path)
