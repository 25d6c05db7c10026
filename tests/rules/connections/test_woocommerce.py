"""The posts of a WooCommerce shop change the order here, and tell its customer of each change once."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from typing import Any

import pytest

from events.consuming.envelope import Rejected
from runtime.personal_data import ERASED_ADDRESS
from shop_connections.woocommerce.read import read_head
from shop_connections.woocommerce.signature import is_ping, is_signed, sign
from tests.kit.seen_orders import SOURCE, Seen, find
from tests.kit.woocommerce import FakeShop
from tests.kit.words import our_id


@pytest.fixture
def shop() -> FakeShop:
    return FakeShop()


@pytest.fixture
def here() -> Seen:
    return Seen()


def post_of(shop: FakeShop, order_id: int, /, **fields: Any) -> bytes:
    """Return a body of an order with other members."""
    return json.dumps(shop.document(order_id) | fields).encode()


class TestLife:
    def test_each_change_is_told_once_and_a_save_without_a_change_says_nothing(self, shop, here):
        id = shop.place(status="on-hold")
        assert here.take_all(shop) == ["order.placed"]
        shop.edit(id)
        assert here.take_all(shop) == []
        shop.pay(id)
        assert here.take_all(shop) == ["order.paid"]
        shop.ship(id, "JD0001")
        assert here.take_all(shop) == ["order.shipped"]
        shop.complete(id)
        assert here.take_all(shop) == ["order.completed"]
        shop.refund(id, "9.90")
        assert here.take_all(shop) == ["order.part_refunded"]
        shop.edit(id)
        assert here.take_all(shop) == []
        shop.refund(id, "40.00")
        assert here.take_all(shop) == ["order.refunded"]
        assert here.state == ("refunded", 4990)

    def test_one_post_makes_up_for_all_that_were_lost(self, shop, here):
        id = shop.place()
        shop.ship(id, "JD0001")
        shop.complete(id)
        shop.refund(id, "1.00")
        shop.refund(id, "2.00")
        _, body = shop.deliveries()[-1]
        assert here.take(body) == ["order.paid", "(order.shipped)", "order.completed"]
        assert [parcel["tracking_number"] for parcel in here.changes[-1].details["parcels"]] == ["JD0001"]
        assert here.state == ("part_refunded", 300)

    def test_an_event_has_the_time_of_its_change(self, shop, here):
        id = shop.place()
        shop.complete(id)
        order = shop.document(id)
        outcome = find(post_of(shop, id), None, Seen().connection, received_at=dt.datetime.now(dt.UTC))
        times = [change.at.isoformat() for change in outcome.changes]
        assert times == [f"{order['date_paid_gmt']}+00:00", f"{order['date_completed_gmt']}+00:00"]

    def test_a_late_save_neither_repeats_nor_takes_back(self, shop, here):
        id = shop.place()
        early = post_of(shop, id)
        shop.complete(id)
        shop.refund(id, "49.90")
        here.take(post_of(shop, id))
        before = here.state
        assert here.take(early) == [] and here.state == before

    def test_within_one_second_an_order_only_goes_on(self, shop, here):
        id = shop.place(status="on-hold")
        early = post_of(shop, id)
        shop.pay(id)
        same = shop.document(id) | {"date_modified_gmt": json.loads(early)["date_modified_gmt"]}
        assert here.take(json.dumps(same).encode()) == ["order.paid"]
        assert here.take(early) == [] and here.state == ("paid", 0)

    def test_within_one_second_no_refund_is_taken_back(self, shop, here):
        id = shop.place()
        shop.refund(id, "1.00")
        early = post_of(shop, id)
        shop.refund(id, "2.00")
        here.take(post_of(shop, id, date_modified_gmt=json.loads(early)["date_modified_gmt"]))
        assert here.take(early) == [] and here.state == ("part_refunded", 300)


class TestStatuses:
    @pytest.mark.parametrize("status", ["pending", "failed", "checkout-draft", "auto-draft", "trash"])
    def test_a_customer_at_the_checkout_has_no_order_yet(self, shop, here, status):
        id = shop.place(status="pending")
        assert here.take(post_of(shop, id, status=status)) == []
        assert here.here is None

    def test_an_abandoned_checkout_is_cancelled_without_a_word(self, shop, here):
        id = shop.place(status="pending")
        shop.cancel(id)
        assert here.take_all(shop) == [] and here.here is None

    def test_an_order_of_the_staff_begins_when_it_is_paid(self, shop, here):
        id = shop.place(status="pending", created_via="admin", billing={"email": ""}, line_items=[])
        assert here.take_all(shop) == []
        shop.pay(id)
        assert here.take_all(shop) == ["order.paid"]
        assert here.order.email == "" and here.order.items == []

    def test_a_cancellation_after_the_payment_says_that_it_was_paid(self, shop, here):
        id = shop.place()
        here.take_all(shop)
        shop.cancel(id)
        assert here.take_all(shop) == ["order.cancelled"]
        assert here.changes[-1].details["was_paid"] is True
        shop.refund(id, "10.00")
        assert here.take_all(shop) == ["order.part_refunded"]
        assert here.state == ("cancelled", 1000)

    def test_an_order_on_hold_is_cancelled_unpaid(self, shop, here):
        id = shop.place(status="on-hold")
        here.take_all(shop)
        shop.cancel(id)
        assert here.take_all(shop) == ["order.cancelled"]
        assert here.changes[-1].details["was_paid"] is False

    def test_an_order_that_is_cancelled_twice_says_so_twice(self, shop, here):
        id = shop.place()
        shop.cancel(id)
        here.take_all(shop)
        shop.edit(id, status="processing")
        assert here.take_all(shop) == ["(order.paid)"]
        shop.cancel(id)
        assert here.take_all(shop) == ["order.cancelled"]

    def test_a_status_taken_back_is_stored_without_an_email_and_not_told_again(self, shop, here):
        id = shop.place()
        shop.complete(id)
        here.take_all(shop)
        shop.edit(id, status="processing")
        assert here.take_all(shop) == ["(order.paid)"]
        shop.complete(id)
        assert here.take_all(shop) == ["(order.completed)"]

    def test_cash_on_delivery_is_confirmed_and_not_paid(self, shop, here):
        id = shop.place(method="cod")
        assert here.take_all(shop) == ["order.confirmed"]
        shop.ship(id, "JD0001")
        shop.complete(id)
        assert here.take_all(shop) == ["(order.shipped)", "order.completed"]

    def test_a_download_is_completed_as_soon_as_it_is_paid(self, shop, here):
        id = shop.place(status="pending")
        shop.complete(id)
        assert here.take_all(shop) == ["order.completed"]

    def test_a_trashed_order_stays_and_goes_on_once_it_is_restored(self, shop, here):
        id = shop.place()
        here.take_all(shop)
        shop.trash(id)
        assert here.take_all(shop) == []
        assert here.take(post_of(shop, id)) == []  # an order.updated that was on its way
        shop.restore(id)
        assert here.take_all(shop) == []
        shop.complete(id)
        assert here.take_all(shop) == ["order.completed"]

    def test_an_order_that_was_imported_as_history_is_not_told_again(self, shop, here):
        """History has no times of its own, because it is from before the connection."""
        for change in (shop.complete, shop.cancel, lambda id: shop.refund(id, "49.90"), shop.edit):
            id = shop.place()
            shop.complete(id)
            change(id)
            here = Seen()
            here.take_all(shop)
            here.change(paid_at=None, completed_at=None)
            here.here = here.here._replace(refunds={})
            before = list(here.emails)
            shop.edit(id)
            here.take_all(shop)
            assert here.emails == before

    def test_an_order_with_a_refund_is_restored_from_its_cancellation_without_an_email(self, shop, here):
        id = shop.place()
        shop.cancel(id)
        shop.refund(id, "10.00")
        here.take_all(shop)
        here.change(paid_at=None)
        here.here = here.here._replace(refunds={})
        shop.edit(id, status="processing")
        assert here.take_all(shop) == ["(order.part_refunded)"]

    def test_a_paid_order_that_loses_its_date_of_payment_stays_paid(self, shop, here):
        id = shop.place()
        here.take_all(shop)
        shop.edit(id, date_paid_gmt=None)
        assert here.take_all(shop) == []

    def test_a_plug_ins_status_means_what_the_connection_says(self, shop):
        here = Seen(packing="paid", wc_ready="confirmed", shipped="completed", archived="")
        id = shop.place()
        for status, told in [
            ("packing", ["order.paid"]),
            ("ready", ["order.confirmed"]),
            ("shipped", ["order.completed"]),
            ("archived", []),
        ]:
            shop.edit(id, status=status)
            assert here.take_all(shop)[-1:] == told

    def test_an_ignored_status_does_not_hide_a_refund(self, shop):
        here = Seen(archived="")
        id = shop.place()
        here.take_all(shop)
        shop.refund(id, "1.00")
        shop.edit(id, status="archived")
        shop.deliveries()
        assert here.take(post_of(shop, id)) == ["order.part_refunded"]

    def test_an_unknown_status_says_where_to_explain_it(self, shop, here):
        id = shop.place()
        with pytest.raises(Rejected, match="'packing' is not one of the platform's: say in the connection"):
            here.take(post_of(shop, id, status="packing"))

    def test_an_order_on_hold_that_was_paid_stays_paid(self, shop, here):
        id = shop.place()
        here.take_all(shop)
        shop.edit(id, status="on-hold")
        assert here.take_all(shop) == []

    def test_a_plug_ins_status_of_a_part_refund_is_that_of_the_refunds(self, shop):
        here = Seen(partly_back="part_refunded")
        id = shop.place()
        shop.refund(id, "1.00")
        shop.edit(id, status="partly-back")
        assert here.take_all(shop) == ["order.paid"]
        assert here.state == ("part_refunded", 100)

    def test_an_ignored_status_of_a_part_refunded_order_leaves_it(self, shop):
        here = Seen(archived="")
        id = shop.place()
        shop.complete(id)
        shop.refund(id, "1.00")
        here.take_all(shop)
        shop.edit(id, status="archived")
        assert here.take_all(shop) == [] and here.state == ("part_refunded", 100)

    def test_a_checkout_can_be_an_order_if_the_connection_says_so(self, shop):
        here = Seen(pending="pending")
        shop.place(status="pending")
        assert here.take_all(shop) == ["order.placed"]


class TestMoney:
    @pytest.mark.parametrize(
        ("currency", "written", "amount"),
        [
            ("EUR", "49.90", 4990),
            ("EUR", "49", 4900),
            ("EUR", "49.905", 4991),
            ("EUR", 49.9, 4990),
            ("JPY", "1200", 1200),
            ("JPY", "1200.00", 1200),
            ("KWD", "12.500", 12500),
            ("KWD", "12.5", 12500),
            ("UYW", "1.2345", 12345),
        ],
    )
    def test_amounts_are_in_the_currencys_minor_unit(self, shop, here, currency, written, amount):
        id = shop.place()
        here.take(post_of(shop, id, currency=currency, total=written))
        assert (here.order.total_amount, here.order.currency) == (amount, currency)

    def test_refunds_are_in_the_orders_currency(self):
        shop, here = FakeShop(currency="JPY", decimals=0), Seen()
        id = shop.place(total="1200")
        shop.refund(id, "200")
        here.take_all(shop)
        assert here.state == ("part_refunded", 200)

    def test_a_free_order_is_paid_and_can_be_refunded(self, shop, here):
        id = shop.place(total="0")
        assert here.take_all(shop) == ["order.paid"]
        shop.edit(id, status="refunded")
        assert here.take_all(shop) == ["order.refunded"]
        shop.edit(id)
        assert here.take_all(shop) == []

    def test_a_status_refunded_without_a_refund_returns_the_rest(self, shop, here):
        id = shop.place()
        shop.refund(id, "9.90")
        here.take_all(shop)
        shop.edit(id, status="refunded")
        assert here.take_all(shop) == ["order.refunded"]
        assert here.changes[-1].details["amount"] == 4000

    def test_a_deleted_refund_is_corrected_and_the_next_one_is_told(self, shop, here):
        id = shop.place()
        wrong = shop.refund(id, "10.00")
        here.take_all(shop)
        shop.delete_refund(id, wrong)
        assert here.take_all(shop) == ["(order.paid)"]
        shop.refund(id, "10.00")
        assert here.take_all(shop) == ["order.part_refunded"]

    def test_a_refund_that_replaces_another_is_told_though_less_is_refunded(self, shop, here):
        """WooCommerce 10.5 posts nothing when a refund is deleted."""
        id = shop.place()
        shop.refund(id, "1.00")
        wrong = shop.refund(id, "20.00")
        here.take_all(shop)
        shop.delete_refund(id, wrong)
        shop.waiting.clear()
        shop.refund(id, "2.00")
        assert here.take_all(shop) == ["order.part_refunded"]
        assert here.changes[-1].details["amount"] == 200
        assert here.state == ("part_refunded", 300)
        shop.edit(id)
        assert here.take_all(shop) == []

    def test_a_deleted_refund_of_all_takes_the_status_back(self, shop, here):
        id = shop.place()
        shop.complete(id)
        refund = shop.refund(id, "49.90")
        here.take_all(shop)
        shop.delete_refund(id, refund)
        assert here.take_all(shop) == ["(order.completed)"]
        assert here.state == ("completed", 0)

    def test_refunds_have_ids_of_their_own_wherever_they_stand(self, shop, here):
        id = shop.place()
        shop.refund(id, "1.00")
        shop.refund(id, "2.00")
        order = shop.document(id)
        listed = [order["refunds"], order["refunds"][::-1]]
        changes = [
            find(
                post_of(shop, id, refunds=refunds),
                None,
                Seen().connection,
                received_at=dt.datetime.now(dt.UTC),
            ).changes
            for refunds in listed
        ]
        assert changes[0] == changes[1]

    def test_a_refund_that_only_restocks_is_none(self, shop, here):
        id = shop.place()
        shop.refund(id, "0")
        assert here.take_all(shop) == ["order.paid"]

    def test_a_total_below_what_was_refunded_is_stored(self, shop, here):
        id = shop.place()
        shop.refund(id, "30.00")
        here.take_all(shop)
        shop.edit(id, total="20.00")
        assert here.take_all(shop) == ["(order.refunded)"]
        assert here.state == ("refunded", 2000)

    @pytest.mark.parametrize("status", ["processing", "completed", "cancelled"])
    def test_a_total_below_what_was_refunded_comes_with_any_other_change(self, shop, here, status):
        id = shop.place()
        shop.refund(id, "30.00")
        here.take_all(shop)
        shop.ship(id, "JD0001")
        shop.edit(id, total="20.00", status=status)
        here.take_all(shop)
        assert here.state == ("cancelled" if status == "cancelled" else "refunded", 2000)

    def test_a_refund_above_the_total_is_of_the_total(self, shop, here):
        id = shop.place()
        shop.refund(id, "30.00")
        assert here.take(post_of(shop, id, total="20.00")) == ["order.refunded"]
        assert here.changes[-1].details["amount"] == 2000

    def test_a_payment_in_another_currency_is_told_if_nothing_was_paid_before(self, shop, here):
        id = shop.place(status="on-hold")
        here.take_all(shop)
        shop.edit(id, currency="USD", status="processing", date_paid_gmt=shop._now())
        assert here.take_all(shop) == ["order.paid"]
        assert here.order.currency == "USD"
        shop.edit(id, currency="CHF")
        assert here.take_all(shop) == ["(order.paid)"]
        assert here.order.currency == "CHF"


class TestDetails:
    def test_an_edited_order_is_stored_without_an_email(self, shop, here):
        id = shop.place()
        here.take_all(shop)
        order = shop.document(id)
        shop.edit(id, billing=order["billing"] | {"email": "ann.lee@example.com"})
        assert here.take_all(shop) == ["(order.paid)"]
        assert here.order.email == "ann.lee@example.com"
        shop.edit(id, line_items=order["line_items"] * 2, total="99.80")
        assert here.take_all(shop) == ["(order.paid)"]
        assert len(here.order.items) == 2 and here.order.total_amount == 9980

    def test_a_split_order_is_two(self, shop, here):
        id = shop.place()
        here.take_all(shop)
        other = shop.place(parent_id=id, total="20.00")
        shop.edit(id, total="29.90")
        shop.waiting.remove(("order.created", other))
        assert here.take_all(shop) == ["(order.paid)"]
        assert Seen().take(post_of(shop, other)) == ["order.paid"]

    def test_a_guest_has_an_id_of_the_order_and_a_customer_the_shops(self, shop, here):
        id = shop.place()
        here.take(post_of(shop, id))
        here.take(post_of(shop, id, customer_id=42, date_paid_gmt=None, status="completed"))
        assert here.order.user_id == our_id(source=SOURCE, id="42")

    def test_an_address_that_no_provider_takes_is_left_out_once(self, shop, here):
        id = shop.place(email="ann@@example")
        assert here.take_all(shop) == ["order.paid"]
        here.change(email="right@example.com")  # by a person here
        shop.edit(id)
        assert here.take_all(shop) == []

    def test_an_erased_person_stays_erased(self, shop, here):
        id = shop.place()
        here.take_all(shop)
        here.change(email=ERASED_ADDRESS, name="[erased]", items=[])
        shop.edit(id)
        assert here.take_all(shop) == []

    def test_texts_become_one_line_that_fits(self, shop, here):
        id = shop.place(number="WEB/2026-1001")
        line = shop.document(id)["line_items"][0] | {"name": "Tea\n\x00" + "x" * 300, "sku": ""}
        billing = {"first_name": "A" * 150, "last_name": "\u202eL\u0007" * 100, "email": "a@example.com"}
        here.take(post_of(shop, id, line_items=[line], billing=billing))
        assert here.order.reference == "WEB/2026-1001" and 198 < len(here.order.name) <= 200
        assert here.order.items[0]["sku"] == "93" and len(here.order.items[0]["name"]) == 200

    def test_items_have_the_tax_if_the_prices_include_it(self, shop, here):
        id = shop.place()
        line = shop.document(id)["line_items"][0] | {"total": "41.93", "total_tax": "7.97"}
        here.take(post_of(shop, id, line_items=[line], prices_include_tax=True))
        assert here.order.items[0]["unit_amount"] == 2495

    def test_a_part_of_an_item_is_one_and_nothing_of_an_item_is_none(self, shop, here):
        id = shop.place()
        line = shop.document(id)["line_items"][0]
        here.take(post_of(shop, id, line_items=[line | {"quantity": 2.5}, line | {"quantity": 0}]))
        assert [(item["quantity"], item["unit_amount"]) for item in here.order.items] == [(1, 4990)]

    def test_a_name_of_an_item_has_no_entities_of_html(self, shop, here):
        """WordPress stores a title of most authors as HTML, and the order has a copy of it."""
        id = shop.place()
        shop.orders[id]["line_items"][0]["name"] = "Tea &amp; Caf&#233; &lt;b&gt;"
        here.take_all(shop)
        assert here.order.items[0]["name"] == "Tea & Café <b>"

    def test_an_order_with_very_many_lines_keeps_as_many_as_fit(self, shop, here):
        id = shop.place()
        here.take(post_of(shop, id, line_items=shop.document(id)["line_items"] * 300))
        assert len(here.order.items) == 200


class TestParcels:
    def test_a_parcel_is_told_with_its_carrier_number_and_link(self, shop, here):
        id = shop.place()
        shop.ship(id, "JD0001", link="https://dhl.example/?n=%1$s")
        here.take_all(shop)
        shipment = here.parcels[-1]
        assert shipment["shipped_at"].isoformat().startswith(shop._now())
        assert {name: shipment[name] for name in ("carrier", "tracking_number", "tracking_url")} == {
            "carrier": "DHL",
            "tracking_number": "JD0001",
            "tracking_url": "https://dhl.example/?n=JD0001",
        }

    def test_a_parcel_that_does_not_move_the_orders_date_is_told(self, shop, here):
        """WooCommerce keeps the date if only meta of a legacy order changes."""
        id = shop.place()
        here.take_all(shop)
        date = shop.orders[id]["date_modified_gmt"]
        shop.ship(id, "JD0001")
        shop.orders[id]["date_modified_gmt"] = date
        assert here.take_all(shop) == ["order.shipped"]

    def test_a_parcel_that_was_deleted_and_entered_again_is_the_same(self, shop, here):
        id = shop.place()
        shop.ship(id, "JD0001")
        here.take_all(shop)
        shop._meta(id, "_wc_shipment_tracking_items").clear()
        shop.edit(id)
        assert here.take_all(shop) == []
        shop.ship(id, "JD0001")
        assert here.take_all(shop) == []

    def test_a_corrected_carrier_is_stored_without_an_email(self, shop, here):
        id = shop.place()
        shop.ship(id, "JD0001")
        here.take_all(shop)
        shop._meta(id, "_wc_shipment_tracking_items")[0]["tracking_provider"] = "ups"
        shop.edit(id)
        assert here.take_all(shop) == ["(order.shipped)"]
        shop.edit(id)
        assert here.take_all(shop) == []

    def test_a_parcel_that_loses_its_carrier_keeps_it(self, shop, here):
        id = shop.place()
        shop.ship(id, "JD0001")
        here.take_all(shop)
        shop._meta(id, "_wc_shipment_tracking_items")[0]["tracking_provider"] = ""
        shop.edit(id)
        assert here.take_all(shop) == []

    def test_a_parcel_left_no_later_than_the_shop_said_so(self, shop, here):
        id = shop.place()
        shop.ship(id, "JD0001")
        shop._meta(id, "_wc_shipment_tracking_items")[0]["date_shipped"] = "4000000000"
        here.take_all(shop)
        assert here.parcels[-1]["shipped_at"].isoformat().startswith(shop._now())

    @pytest.mark.parametrize(
        ("link", "read"),
        [
            ("https://dhl.example/?id=%number%", "https://dhl.example/?id=JD0001"),
            ("https://track_it.example/%number%", ""),
            ("https://dhl/{tracking_number}", ""),
            ("javascript:alert(1)//https://dhl.example", ""),
        ],
    )
    def test_a_link_that_no_event_can_have_is_left_out(self, shop, here, link, read):
        id = shop.place()
        shop.ship(id, "JD0001", link=link)
        here.take_all(shop)
        assert here.parcels[-1]["tracking_url"] == read

    def test_a_delivery_is_told_once(self, shop, here):
        id = shop.place()
        shop.ship(id, "JD0001")
        shop.complete(id)
        here.take_all(shop)
        shop.deliver_parcels(id)
        assert here.take_all(shop) == ["order.delivered"]
        shop.edit(id)
        assert here.take_all(shop) == []

    def test_a_parcel_waits_until_the_order_can_have_one(self, shop, here):
        id = shop.place(status="on-hold")
        shop.ship(id, "JD0001")
        assert here.take_all(shop) == ["order.placed"]
        shop.pay(id)
        assert here.take_all(shop) == ["order.paid", "order.shipped"]

    def test_a_parcel_before_the_refund_of_all_is_told(self, shop, here):
        id = shop.place()
        here.take_all(shop)
        shop.ship(id, "JD0001")
        shop.refund(id, "49.90")
        assert here.take_all(shop) == ["order.shipped", "order.refunded"]

    @pytest.mark.parametrize(
        ("meta", "line_meta"),
        [
            ({"_wc_shipment_tracking_items": [{"tracking_number": "Z1", "tracking_provider": "gls"}]}, {}),
            (
                {"_wc_shipment_tracking_items": {"1": {"tracking_number": "Z1", "tracking_provider": "gls"}}},
                {},
            ),
            ({"_aftership_tracking_items": [{"tracking_number": "Z1", "slug": "gls"}]}, {}),
            ({"_aftership_tracking_items": '[{"tracking_number": "Z1", "slug": "gls"}]'}, {}),
            (
                {"ywot_tracking_code": "Z1", "ywot_carrier_name": "gls", "ywot_picked_up": "on"},
                {},
            ),
            (
                {},
                {"_vi_wot_order_item_tracking_data": '[{"tracking_number": "Z1", "carrier_name": "gls"}]'},
            ),
        ],
    )
    def test_it_reads_the_usual_plug_ins(self, shop, here, meta, line_meta):
        id = shop.place()
        entries = [
            {"id": place, "key": key, "value": value} for place, (key, value) in enumerate(meta.items())
        ]
        line = shop.document(id)["line_items"][0]
        line["meta_data"] = [{"id": 9, "key": key, "value": value} for key, value in line_meta.items()]
        told = here.take(post_of(shop, id, meta_data=entries, line_items=[line]))
        assert told == ["order.paid", "order.shipped"]
        shipment = here.parcels[-1]
        assert (shipment["tracking_number"], shipment["carrier"]) == ("Z1", "GLS")

    def test_a_parcel_in_two_plug_ins_is_one(self, shop, here):
        id = shop.place()
        shop.ship(id, "Z1")
        shop._meta(id, "_aftership_tracking_items").append({"tracking_number": "Z1", "slug": "gls"})
        assert here.take(post_of(shop, id)) == ["order.paid", "order.shipped"]

    def test_a_delivery_is_that_of_the_parcel_with_the_same_key(self, shop, here):
        id = shop.place()
        items = {"0": {"tracking_number": "Z1"}, "2": {"tracking_number": "Z2"}}  # "1" was deleted
        statuses = {"1": {"status": "delivered"}, "2": {"status": "delivered"}}
        meta = {"_wc_shipment_tracking_items": items, "ts_shipment_status": statuses}
        here.take(post_of(shop, id, meta_data=[{"key": key, "value": value} for key, value in meta.items()]))
        assert [shipment.delivered_at is not None for shipment in here.here.shipments] == [False, True]

    def test_an_order_has_at_most_a_hundred_parcels(self, shop, here):
        id = shop.place()
        entries = [{"tracking_number": f"Z{number}"} for number in range(5000)]
        here.take(post_of(shop, id, meta_data=[{"key": "_wc_shipment_tracking_items", "value": entries}]))
        assert len(here.here.shipments) == 100

    def test_its_lines_are_those_of_the_order_or_none(self, shop, here):
        id = shop.place()
        shop.ship(id, "Z1")
        entry = shop._meta(id, "_wc_shipment_tracking_items")[0]
        entry["products_list"] = [{"product": 93, "qty": "1"}]
        here.take(post_of(shop, id))
        assert here.parcels[-1]["lines"] == [{"item": 0, "quantity": 1}]
        entry["products_list"] = [{"product": 94, "qty": "1"}]
        other = Seen()
        other.take(post_of(shop, id))
        assert other.parcels[-1]["lines"] == []
        entry["products_list"] = '[{"product": 1e999, "qty": Infinity}]'
        another = Seen()
        another.take(post_of(shop, id))
        assert another.parcels[-1]["lines"] == []

    def test_meta_of_any_form_breaks_nothing(self, shop, here):
        id = shop.place()
        for value in (None, 7, "[", "[[[", [None, 7, "x", []], {"a": None}, [{"tracking_number": ["x"]}]):
            for key in ("_wc_shipment_tracking_items", "_aftership_tracking_items", "ts_shipment_status"):
                entries = [{"id": 1, "key": key, "value": value}, {"key": None}, None, "x"]
                assert Seen().take(post_of(shop, id, meta_data=entries)) == ["order.paid"]


class TestFirstSight:
    def test_a_shop_that_saves_its_old_orders_mails_nobody_about_them(self, shop):
        """Events of changes in the last 28 days have their times, so that an older one is too old to send."""
        old = (shop.now - dt.timedelta(days=400)).strftime("%Y-%m-%dT%H:%M:%S")
        for change in (shop.complete, shop.cancel, lambda id: shop.refund(id, "49.90")):
            id = shop.place()
            change(id)
            dates = {"date_created_gmt": old, "date_paid_gmt": old}
            if shop.orders[id]["date_completed_gmt"]:
                dates["date_completed_gmt"] = old
            here = Seen()
            told = here.take(post_of(shop, id, **dates))
            assert told and not here.emails

    def test_a_second_save_of_an_old_order_tells_no_parcel_of_then(self, shop, here):
        date = (shop.now - dt.timedelta(days=400)).strftime("%Y-%m-%dT%H:%M:%S")
        id = shop.place()
        shop.complete(id)
        shop.ship(id, "JD0001")
        shop.orders[id].update(date_created_gmt=date, date_paid_gmt=date, date_completed_gmt=date)
        here.take(post_of(shop, id))
        assert not here.emails and here.here.shipments
        shop.edit(id)
        assert here.take(post_of(shop, id)) == []

    def test_a_save_owes_nothing_whatever_the_age_of_the_order_and_the_first_post_are(self):
        for seed in range(300):
            shop, here = FakeShop(seed=seed), Seen()
            now = shop.now
            shop.now -= dt.timedelta(days=random.choice([400, 60, 40, 20, 3]))
            id = shop.place_any()
            for _ in shop.live(id):
                later = shop.now + dt.timedelta(days=random.choice([0, 0, 1, 10, 30]))
                shop.now = later if later < now else shop.now
                if random.random() < 0.2:
                    here.take(post_of(shop, id))
            here.take(post_of(shop, id))
            shop.now = max(shop.now, now)
            shop.edit(id)
            assert here.take(post_of(shop, id)) == [], seed

    def test_an_undated_change_of_a_new_order_has_the_orders_newest_date(self, shop):
        id = shop.place()
        shop.refund(id, "1.00")
        order = shop.document(id)
        outcome = find(post_of(shop, id), None, Seen().connection, received_at=dt.datetime.now(dt.UTC))
        assert {change.at.isoformat() for change in outcome.changes} == {f"{order['date_paid_gmt']}+00:00"}

    def test_an_order_that_only_an_import_told_is_as_old_as_one_that_nobody_did(self, shop, here):
        id = shop.place()
        shop.complete(id)
        here.take_all(shop)
        shop.now += dt.timedelta(hours=3)
        shop.refund(id, "1.00")
        shop.ship(id, "JD0001")
        entry = shop._meta(id, "_wc_shipment_tracking_items")[0]
        entry["date_shipped"] = str(int((shop.now - dt.timedelta(hours=2)).timestamp()))
        completed_at = f"{shop.orders[id]['date_completed_gmt']}+00:00"
        shipped_at = (shop.now - dt.timedelta(hours=2)).isoformat()
        saved_at = here.order.reported_at
        for reported_at, times in (
            (None, {completed_at, shipped_at}),
            (saved_at, {f"{shop._now()}+00:00"}),
        ):
            here.change(reported_at=reported_at)
            outcome = here.find(post_of(shop, id))
            assert {change.at.isoformat() for change in outcome.changes} == times

    def test_an_undated_change_of_a_known_order_has_the_time_of_the_save(self, shop, here):
        id = shop.place()
        here.take_all(shop)
        shop.refund(id, "1.00")
        outcome = here.find(post_of(shop, id))
        assert outcome.changes[0].at.isoformat() == f"{shop._now()}+00:00"

    def test_a_clock_that_is_ahead_makes_no_event_of_the_future(self, shop):
        id = shop.place()
        received_at = shop.now.replace(tzinfo=dt.UTC) - dt.timedelta(hours=1)
        outcome = find(post_of(shop, id), None, Seen().connection, received_at=received_at)
        assert outcome.changes[0].at == received_at


class TestUnusable:
    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"id": "x"}, "its id is not a number"),
            ({"id": None}, "its id is not a number"),
            ({"currency": "euro"}, "its currency is not three letters"),
            ({"currency": None}, "its currency is missing"),
            ({"total": "much"}, "its total is not an amount"),
            ({"total": "NaN"}, "its total is not an amount"),
            ({"total": "1e99"}, "its total is not an amount"),
            ({"total": True}, "its total is not an amount"),
        ],
    )
    def test_it_says_what_is_wrong_without_quoting(self, shop, here, change, reason):
        id = shop.place()
        with pytest.raises(Rejected, match=reason) as caught:
            here.take(post_of(shop, id, **change))
        assert "ann" not in str(caught.value)

    @pytest.mark.parametrize("body", [b"", b"[]", b"webhook_id=7", b'{"a":', b"\xff", b"7"])
    def test_what_is_no_json_object_is_refused(self, body):
        with pytest.raises(Rejected):
            read_head(body)

    def test_deep_nesting_is_refused(self):
        with pytest.raises(Rejected, match="nested too deeply"):
            read_head(b'{"a":' * 100_000)

    @pytest.mark.parametrize(
        "document",
        [
            {"id": 7},
            {"id": 7, "name": "Green tea", "status": "publish", "sku": "TEA"},
            {"id": 7, "email": "ann@example.com", "role": "customer"},
            {"id": 7, "code": "10off", "amount": "10.00"},
            {"action": "woocommerce_add_to_cart", "arg": "x"},
            {"id": 7, "status": "active", "line_items": [], "billing_period": "month"},
            {
                "code": "woocommerce_rest_shop_order_invalid_id",
                "message": "Invalid ID.",
                "data": {"status": 404},
            },
        ],
    )
    def test_a_post_about_something_else_is_no_order(self, document):
        assert read_head(json.dumps(document).encode()) is None

    def test_a_user_who_may_not_see_orders_and_an_old_api_are_explained(self):
        error = {"code": "woocommerce_rest_cannot_view", "message": "Sorry, ann", "data": {"status": 401}}
        with pytest.raises(Rejected, match="the user of the webhook must be allowed to see orders"):
            read_head(json.dumps(error).encode())
        with pytest.raises(Rejected, match="choose WP REST API Integration v3"):
            read_head(b'{"order":{"id":7}}')


class TestSignature:
    def test_only_the_raw_body_under_the_secret_is_signed(self, shop):
        shop.place()
        ((headers, body),) = shop.deliveries()
        assert is_signed(body=body, headers=headers, secret=shop.secret)
        assert not is_signed(body=body + b" ", headers=headers, secret=shop.secret)
        assert not is_signed(body=body, headers=headers, secret="another")
        assert not is_signed(body=body, headers={}, secret=shop.secret)
        assert not is_signed(body=body, headers={"X-WC-Webhook-Signature": "ä"}, secret=shop.secret)
        empty = {"X-WC-Webhook-Signature": sign(body=body, secret="")}
        assert not is_signed(body=body, headers=empty, secret="")

    def test_the_signature_is_that_of_hash_hmac(self):
        """By `printf '{}' | openssl dgst -sha256 -hmac secret -binary | base64`."""
        assert sign(body=b"{}", secret="secret") == "dzJZAsrKgS3CWXM6rNBGtzgXNyx3e42VtAJkdHRRbhM="

    @pytest.mark.parametrize(
        ("body", "content_type", "is_one"),
        [
            (b"webhook_id=7", "application/x-www-form-urlencoded", True),
            (b"webhook_id=7", "application/x-www-form-urlencoded; charset=UTF-8", True),
            (b"webhook_id=7", "application/json", False),
            (b"webhook_id=7&x=1", "application/x-www-form-urlencoded", False),
            (b"webhook_id=", "application/x-www-form-urlencoded", False),
        ],
    )
    def test_the_ping_is_known_by_its_body(self, body, content_type, is_one):
        assert is_ping(body=body, content_type=content_type) is is_one


@pytest.mark.parametrize("seed", range(300))
def test_a_shuffled_doubled_and_dropped_life_ends_in_the_truth(seed: int) -> None:
    """Each post has the order as it was at its change. The last one arrives after all others."""
    dice, shop, here = random.Random(seed), FakeShop(seed=seed), Seen()
    id = shop.place_any()
    posts = shop.deliveries()
    for _ in shop.live(id):
        posts += shop.deliveries()
    arrivals = [body for _, body in posts for _ in range(dice.choice([0, 1, 1, 2]))]
    dice.shuffle(arrivals)
    for body in arrivals:
        here.take(body)
    shop.edit(id)
    here.take_all(shop)
    truth = shop.truth(id)
    if truth.status is None:
        assert here.here is None
        return
    assert here.state == (truth.status, truth.refunded)
    told = Counter(here.emails)
    too_many, missing = told - Counter(truth.emails), Counter(truth.owed) - told
    together = sum(len(change.details.get("parcels", ())) for change in here.changes)
    if missing["order.shipped"] <= told["order.delivered"] + together:  # delivered or completed meanwhile
        del missing["order.shipped"]
    assert not too_many and not missing
    before = len(here.changes)
    for body in arrivals:
        here.take(body)
    assert len(here.changes) == before


def test_the_lives_have_all_that_happens_to_orders() -> None:
    """Otherwise the test before this one would show nothing."""
    emails: Counter[str] = Counter()
    for seed in range(100):
        shop = FakeShop(seed=seed)
        id = shop.place_any()
        for _ in shop.live(id):
            shop.deliveries()
        emails += Counter(shop.truth(id).emails)
    assert set(emails) == {
        f"order.{name}"
        for name in (
            "placed",
            "confirmed",
            "delivered",
            "paid",
            "shipped",
            "completed",
            "cancelled",
            "refunded",
            "part_refunded",
        )
    }
    assert min(emails.values()) >= 5
