"""Read the odd inputs of public reports about shops: each as well as possible, and the rest of its order."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from events.consuming.envelope import Rejected
from orders.models import Order
from shop_connections.clocks import find_offset
from shop_connections.shop_order import ShopOrder
from shop_connections.woocommerce import read as read_module
from shop_connections.woocommerce import setup
from shop_connections.woocommerce.client import FIELDS
from shop_connections.woocommerce.read import read_head, read_order, read_status
from tests.kit.seen_orders import Seen
from tests.kit.woocommerce import FakeShop

HOUR = dt.timedelta(hours=1)


@pytest.fixture
def shop() -> FakeShop:
    return FakeShop()


@pytest.fixture
def here() -> Seen:
    return Seen()


def post_of(shop: FakeShop, order_id: int, /, **fields: Any) -> bytes:
    return json.dumps(shop.document(order_id) | fields).encode()


def read(shop: FakeShop, order_id: int, /, **fields: Any) -> ShopOrder:
    order = read_order(post_of(shop, order_id, **fields), locale="en")
    assert order is not None
    return order


def entries(**meta: Any) -> list[dict[str, Any]]:
    return [{"id": number, "key": key, "value": value} for number, (key, value) in enumerate(meta.items())]


class TestTimes:
    @pytest.mark.parametrize(
        "date",
        ["-0001-11-30T00:00:00", "0000-00-00T00:00:00", "1970-01-01T00:00:00", False, 0, "yesterday", []],
    )
    @pytest.mark.parametrize("name", ["date_created_gmt", "date_paid_gmt", "date_completed_gmt"])
    def test_a_date_that_is_none_is_a_doubt_and_the_rest_goes_on(self, shop, here, name, date):
        id = shop.place()
        shop.refund(id, "1.00")
        here.take(post_of(shop, id, **{name: date}))
        assert here.state == ("part_refunded", 100)
        assert here.doubts == [f"{name}: It is not a time."]

    @pytest.mark.parametrize("date", [None, "", "0000-00-00T00:00:00", "2647-11-28T00:00:00"])
    def test_a_save_whose_date_is_none_or_in_the_future_hides_no_later_one(self, shop, here, date):
        id = shop.place()
        here.take_all(shop)
        shop.complete(id)
        shop.waiting.clear()
        assert here.take(post_of(shop, id, date_modified_gmt=date)) == ["order.completed"]
        shop.refund(id, "49.90")
        assert here.take_all(shop) == ["order.refunded"]

    def test_a_payment_in_the_future_is_one_of_now(self, shop, here):
        id = shop.place()
        assert here.take(post_of(shop, id, date_paid_gmt="9999-12-31T23:59:59")) == ["order.paid"]
        assert here.order.paid_at < dt.datetime.now(dt.UTC)

    def test_a_late_save_with_another_state_says_so_and_one_with_the_same_does_not(self, shop, here):
        id = shop.place()
        early = post_of(shop, id)
        shop.edit(id)
        here.take_all(shop)
        assert here.find(early).left_out == ""
        shop.complete(id)
        here.take_all(shop)
        outcome = here.find(early)
        assert not outcome.changes and "a later save of this order was stored before" in outcome.left_out

    @pytest.mark.parametrize(
        ("hours", "offset"),
        [
            ([-3.5, -3.5, -3.49, 2], -3.49),  # ahead; a late post
            ([8, 8.1, 8.2, -400, 9], 8.2),  # behind, and a wrong date
            ([0.001, 0.02, 0.03], 0),
            ([-3.5], -3.5),
            ([5, 4], 4),
            ([27, -27], 0),
            ([], 0),
        ],
    )
    def test_the_third_smallest_difference_is_the_offset(self, hours, offset):
        differences = [(number, hour * HOUR) for number, hour in enumerate(hours)]
        assert find_offset(differences) == offset * HOUR

    def test_many_posts_of_one_order_count_once(self):
        assert find_offset([(1, -3 * HOUR)] * 9 + [(2, HOUR), (3, 2 * HOUR)]) == 2 * HOUR

    def test_times_are_corrected_and_never_later_than_the_post(self, shop):
        id = shop.place()
        received_at = dt.datetime.fromisoformat(shop._now()).replace(tzinfo=dt.UTC)
        early = read(shop, id)
        order = early.on_our_clock(8 * HOUR, received_at=received_at + 8 * HOUR)
        assert order.paid_at == order.saved_at == received_at + 8 * HOUR
        assert order.modified_at == received_at
        shop.ship(id, "Z1")
        order = read(shop, id).on_our_clock(8 * HOUR, received_at=received_at + 9 * HOUR)
        assert order.parcels[0].shipped_at == shop.now + 8 * HOUR
        shop._meta(id, "_wc_shipment_tracking_items")[0]["date_shipped"] = "2026-03-01"
        order = read(shop, id).on_our_clock(8 * HOUR, received_at=received_at + 9 * HOUR)
        assert order.parcels[0].shipped_at == dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
        order = early.on_our_clock(received_at=received_at - dt.timedelta(seconds=90))
        assert order.saved_at == received_at - dt.timedelta(seconds=90) and not order.doubts


class TestCreation:
    def test_without_a_date_an_order_is_as_old_as_its_oldest_other_one(self, shop, here):
        """Otherwise a refund of an old order, whose post is its first, would be mailed."""
        id = shop.place()
        shop.refund(id, "1.00")
        paid_at = (shop.now - dt.timedelta(days=400)).strftime("%Y-%m-%dT%H:%M:%S")
        body = post_of(shop, id, date_created_gmt=False, date_paid_gmt=paid_at)
        assert here.take(body) == ["(order.part_refunded)"]
        assert here.order.created_at.isoformat() == f"{paid_at}+00:00"


class TestMoney:
    @pytest.mark.parametrize("total", ["--10.00", "-10,00", "-€10.00", "10.00 EUR", "-10.00", -10, "10"])
    def test_a_refunds_amount_is_read_in_whatever_form(self, shop, here, total):
        id = shop.place()
        here.take_all(shop)
        shop.edit(id, refunds=[{"id": 5, "total": total}])
        assert here.take_all(shop) == ["order.part_refunded"]
        assert here.state == ("part_refunded", 1000)

    @pytest.mark.parametrize(
        "refunds", [{"0": {"id": 5, "total": "-10.00"}}, [{"id": 5.0, "total": "-10.00"}]]
    )
    def test_refunds_are_read_in_whatever_list(self, shop, here, refunds):
        id = shop.place()
        here.take_all(shop)
        shop.edit(id, refunds=refunds)
        assert here.take_all(shop) == ["order.part_refunded"]
        shop.edit(id)
        assert here.take_all(shop) == []

    @pytest.mark.parametrize("id_of_refund", [None, ""])
    def test_refunds_without_ids_are_told_once_each(self, shop, here, id_of_refund):
        id = shop.place()
        here.take_all(shop)
        refund = {"id": id_of_refund, "total": "-10.00"}
        shop.edit(id, refunds=[refund])
        assert here.take_all(shop) == ["order.part_refunded"]
        shop.edit(id, refunds=[refund, refund])
        assert here.take_all(shop) == ["order.part_refunded"]
        assert here.state == ("part_refunded", 2000)
        shop.edit(id)
        assert here.take_all(shop) == []

    @pytest.mark.parametrize(
        "refunds", [None, False, "none", [{"id": 9, "total": ""}], [{"id": 9, "total": None}], [7]]
    )
    def test_refunds_that_cannot_be_read_leave_those_that_were(self, shop, here, refunds):
        id = shop.place()
        shop.refund(id, "10.00")
        here.take_all(shop)
        shop.complete(id)
        shop.waiting.clear()
        assert here.take(post_of(shop, id, refunds=refunds)) == ["order.completed"]
        assert here.state == ("part_refunded", 1000)
        assert [doubt for doubt in here.doubts if doubt.startswith("refunds")]

    @pytest.mark.parametrize("refunds", [{}, []])
    def test_an_empty_list_takes_a_refund_back(self, shop, here, refunds):
        id = shop.place()
        shop.refund(id, "10.00")
        here.take_all(shop)
        shop.edit(id, refunds=refunds)
        here.take_all(shop)
        assert here.state == ("paid", 0)

    @pytest.mark.parametrize("total", [None, "", "much", True, []])
    def test_a_total_that_cannot_be_read_leaves_the_stored_one(self, shop, here, total):
        id = shop.place()
        here.take_all(shop)
        shop.complete(id)
        shop.waiting.clear()
        assert here.take(post_of(shop, id, total=total)) == ["order.completed"]
        assert here.order.total_amount == 4990

    def test_a_member_that_a_body_lacks_leaves_what_is_stored(self, shop, here):
        id = shop.place()
        shop.refund(id, "10.00")
        here.take_all(shop)
        shop.complete(id)
        document = shop.document(id)
        for name in ("total", "currency", "refunds", "billing", "number", "customer_id", "date_created_gmt"):
            del document[name]
        before = {
            name: getattr(here.order, name) for name in ("total_amount", "email", "name", "user_id", "items")
        }
        assert here.take(json.dumps(document).encode()) == ["order.completed"]
        assert {name: getattr(here.order, name) for name in before} == before
        assert here.state == ("part_refunded", 1000)

    @pytest.mark.parametrize("currency", ["eur", " EUR "])
    def test_a_currency_in_small_letters_is_raised(self, shop, here, currency):
        here.take(post_of(shop, shop.place(), currency=currency))
        assert here.order.currency == "EUR"


class TestTexts:
    def test_entities_and_tags_are_taken_out(self, shop, here):
        id = shop.place(number="N&#8470; 5")
        line = shop.document(id)["line_items"][0]
        line["name"] = "Licence<span> - </span>1 year &amp; <b>Pro</b>"
        billing = {"first_name": "Ann &amp; Bob", "last_name": "O&#039;Brien", "email": "a@example.com"}
        here.take(post_of(shop, id, line_items=[line], billing=billing))
        assert here.order.items[0]["name"] == "Licence - 1 year & Pro"
        assert (here.order.name, here.order.reference) == ("Ann & Bob O'Brien", "N№ 5")

    @pytest.mark.parametrize("written", [" completed", "Completed", "WC-COMPLETED", "wc-completed "])
    def test_a_status_is_read_with_blanks_and_capitals(self, shop, here, written):
        id = shop.place()
        shop.complete(id)
        here.take(post_of(shop, id, status=written))
        assert here.state == ("completed", 0)

    @pytest.mark.parametrize("status", [7, None, "", "ann@example.com", []])
    def test_a_status_that_is_no_word_leaves_the_orders(self, shop, here, status):
        id = shop.place()
        here.take_all(shop)
        shop.refund(id, "1.00")
        shop.waiting.clear()
        assert here.take(post_of(shop, id, status=status)) == ["order.part_refunded"]
        assert here.doubts == ["status: It is not a word. The order keeps its status."]

    def test_a_persons_words_for_a_status_are_read_as_the_shops(self):
        written = (" packed", "WC-PACKED", "Awaiting shipment", "no\x00", "Ü", "\u0438\u0306")
        assert [read_status(word) for word in written] == [
            *("packed", "packed", "awaiting-shipment", "", "ü", "\u0439")
        ]

    @pytest.mark.parametrize(
        ("meta", "locale"),
        [
            ({"wpml_language": "de"}, "de"),
            ({"lang": "fr"}, "fr"),
            ({"trp_language": "es_ES"}, "es-ES"),
            ({"wpml_language": "x" * 50}, "en"),
            ({"wpml_language": ["de"]}, "en"),
        ],
    )
    def test_the_order_has_the_language_of_the_shops_plug_in(self, shop, here, meta, locale):
        id = shop.place()
        here.take(post_of(shop, id, meta_data=entries(**meta)))
        assert here.order.locale == locale


class TestWho:
    def test_a_guests_order_becomes_the_accounts_without_an_email(self, shop, here):
        id = shop.place()
        here.take_all(shop)
        guest = here.order.user_id
        shop.edit(id, customer_id=17)
        assert here.take_all(shop) == ["(order.paid)"]
        assert here.order.user_id != guest
        shop.edit(id)
        assert here.take_all(shop) == []

    def test_an_order_says_from_where_it_is_and_which_one(self, shop):
        id = shop.place()
        for link, address in (
            ("https://shop.example/wp-json/wc/v3/orders/1", "https://shop.example"),
            ("https://shop.example/staging/wp-json/wc/v3/orders/1", "https://shop.example/staging"),
            ("https://shop.example/index.php?rest_route=/wc/v3/orders/1", "https://shop.example"),
            ("javascript:1/wp-json/", ""),
            (7, ""),
        ):
            head = read_head(post_of(shop, id, _links={"self": [{"href": link}]}))
            assert head is not None and head.address == address
        for links in (None, [], {"self": 7}, {"self": [7]}, {"self": {"0": {"href": "x"}}}):
            head = read_head(post_of(shop, id, _links=links))
            assert head is not None and head.address == ""
        keys = {
            read_head(post_of(shop, id, order_key=key)).key for key in ("wc_order_a", "wc_order_b", None, 7)
        }
        assert len(keys) == 3 and "wc_order_a" not in str(keys)

    def test_the_api_is_asked_for_every_member_that_is_read(self, shop, monkeypatch):
        asked: set[str] = set()

        class Asking(dict[str, Any]):
            def get(self, key: str, default: Any = None) -> Any:
                asked.add(key)
                return super().get(key, default)

            def __getitem__(self, key: str) -> Any:
                asked.add(key)
                return super().__getitem__(key)

        document = Asking(shop.document(shop.place()))
        read_module._Reading(document, "en").read()
        read_module._address(document)
        asked.add("order_key")
        monkeypatch.setattr(setup, "parse_json", lambda *_, **__: document)
        list(setup.find_lacks(b""))
        assert asked == set(FIELDS)


class TestParcels:
    def ship(self, shop: FakeShop, id: int, number: str, *, product: int) -> None:
        entry = {"tracking_id": f"id of {number}", "tracking_number": number}
        entry_of_product = entry | {"products_list": [{"product": product, "qty": 1}]}
        shop._meta(id, "_wc_shipment_tracking_items").append(entry_of_product)
        shop.edit(id)

    def test_a_corrected_number_is_told_once_as_a_correction(self, shop, here):
        id = shop.place()
        shop.ship(id, "JD0001")
        here.take_all(shop)
        entry = shop._meta(id, "_wc_shipment_tracking_items")[0]
        entry["tracking_number"] = "JD0002"
        shop.edit(id)
        assert here.take_all(shop) == ["order.shipped"]
        assert here.changes[-1].is_corrected
        assert [each.tracking_number for each in here.here.shipments] == ["JD0002"]
        shop.edit(id)
        assert here.take_all(shop) == []

    def test_an_entry_that_came_at_the_place_of_another_is_its_correction(self, shop, here):
        id = shop.place()
        shop.ship(id, "JD0001")
        here.take_all(shop)
        shop._meta(id, "_wc_shipment_tracking_items").clear()
        shop.ship(id, "JD0002")
        assert here.take_all(shop) == ["order.shipped"]
        assert here.changes[-1].is_corrected and len(here.here.shipments) == 1
        shop.edit(id)
        assert here.take_all(shop) == []

    def test_a_number_where_none_was_is_told(self, shop, here):
        id = shop.place()
        shop.ship(id, "")
        assert here.take_all(shop) == ["order.paid"]
        shop._meta(id, "_wc_shipment_tracking_items")[0]["tracking_number"] = "JD0001"
        shop.edit(id)
        assert here.take_all(shop) == ["order.shipped"]

    @pytest.mark.parametrize("status", ["return_to_sender", "returned"])
    def test_a_parcel_that_came_back_is_told_nothing_more(self, shop, here, status):
        id = shop.place()
        shop.ship(id, "JD0001")
        here.take_all(shop)
        shop._meta(id, "ts_shipment_status").append({"status": status})
        shop.edit(id)
        here.take_all(shop)
        assert here.here.shipments[0].returned_at and not here.here.shipments[0].delivered_at
        shop._meta(id, "ts_shipment_status")[0]["status"] = "delivered"
        before = list(here.emails)
        shop.edit(id)
        here.take_all(shop)
        assert here.emails == before and "order.delivered" not in before

    def test_a_parcel_that_was_corrected_and_delivered_is_told_as_delivered(self, shop, here):
        id = shop.place()
        shop.ship(id, "JD0001")
        here.take_all(shop)
        shop._meta(id, "_wc_shipment_tracking_items")[0]["tracking_number"] = "JD0002"
        shop.deliver_parcels(id)
        assert here.take_all(shop) == ["order.delivered"]
        assert here.parcels[-1]["tracking_number"] == "JD0002"
        shop.edit(id)
        assert here.take_all(shop) == []

    @pytest.mark.parametrize("end", ["refund", "cancel"])
    def test_a_parcel_is_told_in_the_save_that_makes_an_ended_order_go_on(self, shop, here, end):
        id = shop.place()
        shop.refund(id, "9.90")
        if end == "refund":
            second = shop.refund(id, "40.00")
        else:
            shop.cancel(id)
        here.take_all(shop)
        shop.ship(id, "JD0001")
        if end == "refund":
            shop.delete_refund(id, second)
        else:
            shop.edit(id, status="processing")
        assert here.take(post_of(shop, id)) == ["(order.part_refunded)", "order.shipped"]
        assert here.state == ("part_refunded", 990)
        shop.waiting.clear()
        shop.edit(id)
        assert here.take_all(shop) == []

    def test_a_completion_in_the_save_that_takes_a_refund_back_is_told(self, shop, here):
        id = shop.place()
        shop.refund(id, "9.90")
        second = shop.refund(id, "40.00")
        here.take_all(shop)
        shop.delete_refund(id, second)
        shop.ship(id, "JD0001")
        shop.complete(id)
        assert here.take(post_of(shop, id)) == ["order.completed", "order.shipped"]
        assert here.state == ("part_refunded", 990)

    @pytest.mark.parametrize(
        ("value", "numbers"),
        [
            ('a:1:{i:0;a:1:{s:15:"tracking_number";s:5:"1Z999";}}', ["1Z999"]),
            ([{"tracking_number": "1Z999, 1Z998\n1Z997"}], ["1Z999", "1Z998", "1Z997"]),
            ([{"tracking_number": 123.0}], ["123"]),
            ([{"tracking_number": 123}], ["123"]),
            ('a:1:{i:0;O:8:"stdClass":0:{}}', []),
            ("a:99999999999:{", []),
            ('a:1:{i:0;s:999999:"x";}', []),
        ],
    )
    def test_numbers_are_read_in_whatever_list(self, shop, value, numbers):
        order = read(shop, shop.place(), meta_data=entries(_wc_shipment_tracking_items=value))
        assert [parcel.tracking_number for parcel in order.parcels] == numbers
        assert len({parcel.id for parcel in order.parcels}) == len(numbers)

    def test_two_entries_of_the_key_are_both_read(self, shop):
        meta = [
            {"key": "_wc_shipment_tracking_items", "value": [{"tracking_number": number}]}
            for number in ("Z1", "Z2")
        ]
        order = read(shop, shop.place(), meta_data=meta)
        assert [parcel.tracking_number for parcel in order.parcels] == ["Z1", "Z2"]

    @pytest.mark.parametrize(
        ("carrier", "name"),
        [("deutsche-post-dhl", "Deutsche Post DHL"), ("ups", "UPS"), ("Royal Mail", "Royal Mail"), (7, "")],
    )
    def test_the_code_of_a_carrier_gets_a_name(self, shop, carrier, name):
        id = shop.place()
        shop.ship(id, "Z1", carrier=carrier)
        assert read(shop, id).parcels[0].carrier == name

    @pytest.mark.parametrize(
        ("link", "shown"),
        [
            ("https://dhl.example/?n=%1$s&amp;l=de", "https://dhl.example/?n=AB%2012%2F3&l=de"),
            *(
                (f"https://dhl.example/{place}", "")
                for place in ("%2$s", "{{number}}", "[tracking_number]", "%s", "#TRACKING#")
            ),
        ],
    )
    def test_a_link_has_the_number_or_is_dropped(self, shop, link, shown):
        id = shop.place()
        shop.ship(id, "AB 12/3", link=link)
        assert read(shop, id).parcels[0].tracking_url == shown

    def test_a_deleted_or_moved_line_changes_no_parcel(self, shop, here):
        id = shop.place()
        line = shop.document(id)["line_items"][0]
        lines = [line | {"id": n, "product_id": n, "name": f"Tea {n}", "sku": f"T{n}"} for n in (11, 12, 13)]
        self.ship(shop, id, "P1", product=12)
        shop.edit(id, line_items=lines)
        here.take_all(shop)
        assert here.here.shipments[0].lines == [{"item": 1, "quantity": 1}]
        self.ship(shop, id, "P2", product=13)
        shop.edit(id, line_items=[lines[2], lines[1]])
        here.take_all(shop)
        named = [
            [here.order.items[line["item"]]["name"] for line in shipment.lines]
            for shipment in here.here.shipments
        ]
        assert named == [["Tea 12"], ["Tea 13"]]
        assert here.emails == ["order.paid", "order.shipped", "order.shipped"]


class TestWhoGetsAnEmail:
    def live(self, here: Seen, at: dt.datetime) -> None:
        here.connection.state, here.connection.live_at = "live", at

    def test_an_order_since_going_live_is_told_everything(self, shop, here):
        self.live(here, shop.now.replace(tzinfo=dt.UTC))
        id = shop.place()
        shop.cancel(id)
        assert here.take(post_of(shop, id)) == ["order.paid", "order.cancelled"]

    def test_a_bank_transfer_of_yesterdays_order_is_told_and_the_rest_of_it_is_history(self, shop, here):
        id = shop.place(status="on-hold")
        shop._tick()
        self.live(here, shop.now.replace(tzinfo=dt.UTC))
        shop.pay(id)
        assert here.take(post_of(shop, id)) == ["order.paid"]
        other = shop.place()
        shop.orders[other]["date_created_gmt"] = "2026-01-01T00:00:00"
        there = Seen()
        self.live(there, shop.now.replace(tzinfo=dt.UTC) - HOUR)
        shop.refund(other, "1.00")
        assert there.take(post_of(shop, other)) == ["(order.part_refunded)"]

    def test_an_undated_change_in_the_first_post_of_an_older_order_is_history(self, shop, here):
        id = shop.place()
        shop._tick()
        self.live(here, shop.now.replace(tzinfo=dt.UTC))
        shop.cancel(id)
        assert here.take(post_of(shop, id)) == ["(order.cancelled)"]
        shop.edit(id)
        assert here.take_all(shop)[-1:] != ["order.cancelled"]

    @pytest.mark.parametrize(
        ("via", "told"), [("wp-all-import", False), ("migration", False), ("rest-api", True)]
    )
    def test_an_import_is_history(self, shop, here, via, told):
        id = shop.place(created_via=via)
        shop.complete(id)
        here.take(post_of(shop, id))
        assert bool(here.emails) is told
        assert here.state == ("completed", 0)

    def test_a_marketplaces_order_below_another_tells_of_parcels_and_refunds_alone(self, shop, here):
        id = shop.place(parent_id=7, created_via="dokan")
        shop.ship(id, "Z1")
        shop.complete(id)
        shop.refund(id, "1.00")
        here.take_all(shop)
        assert here.emails == ["order.shipped", "order.part_refunded"]
        own, there = shop.place(created_via="dokan"), Seen()
        assert there.take(post_of(shop, own)) == ["order.paid"]  # a vendor's subscription is below no order

    def test_a_clock_a_minute_ahead_makes_no_download_of_an_order(self, shop, here):
        shop.now = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=20)
        id = shop.place()
        shop.now = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=90)
        shop.complete(id)
        assert here.take(post_of(shop, id)) == ["order.paid", "order.completed"]

    def test_what_was_refunded_in_the_save_that_paid_is_in_its_email(self, shop, here, settings):
        id = shop.place()
        shop.refund(id, "10.00")
        body = post_of(shop, id)
        assert here.take(body) == ["order.paid"] and here.state == ("part_refunded", 1000)
        settings.NOTIFY_ON = ["order.part_refunded"]
        there = Seen()
        assert there.take(body) == ["order.paid", "order.part_refunded"]

    def test_a_download_is_told_as_completed_or_else_as_paid(self, shop, here, settings):
        id = shop.place(status="pending")
        shop.complete(id)
        assert here.take(post_of(shop, id)) == ["order.completed"]
        settings.NOTIFY_ON = ["order.paid"]
        there = Seen()
        assert there.take(post_of(shop, id)) == ["order.paid", "order.completed"]

    def test_a_payment_is_told_in_a_status_that_the_connection_ignores(self, shop):
        here = Seen(internal="")
        id = shop.place(status="on-hold")
        here.take_all(shop)
        shop.pay(id)
        assert here.take(post_of(shop, id, status="internal")) == ["order.paid"]

    def test_a_refund_after_going_live_of_a_payment_before_it_is_told(self, shop, here):
        id = shop.place(status="on-hold")
        here.take_all(shop)
        shop.pay(id)
        shop._tick()
        self.live(here, shop.now.replace(tzinfo=dt.UTC))
        shop.refund(id, "1.00")
        told = here.take(post_of(shop, id))
        assert told == ["order.paid", "order.part_refunded"]
        assert [here.connection.withheld(change.at) is None for change in here.changes[-2:]] == [False, True]

    def test_a_parcel_before_going_live_is_history_in_the_first_post_of_its_completed_order(self, shop, here):
        id = shop.place()
        shop.now -= 40 * HOUR
        shop.ship(id, "Z1")
        shop.now += 40 * HOUR
        shop._tick()
        self.live(here, shop.now.replace(tzinfo=dt.UTC))
        shop.ship(id, "Z2")
        shop.complete(id)
        assert here.take(post_of(shop, id)) == ["(order.shipped)", "(order.shipped)", "order.completed"]
        parcels = here.changes[-1].details["parcels"]
        assert [parcel["tracking_number"] for parcel in parcels] == ["Z2"]

    @pytest.mark.parametrize(("hours", "told"), [(3, ["order.paid"]), (-3, ["(order.part_refunded)"])])
    def test_a_first_post_tells_a_payment_within_30_days_of_the_order(self, shop, here, hours, told):
        self.live(here, shop.now.replace(tzinfo=dt.UTC) - 900 * HOUR)
        id = shop.place()
        created_at = shop.now.replace(tzinfo=dt.UTC) + (hours - 30 * 24) * HOUR
        shop.refund(id, "1.00")
        assert here.take(post_of(shop, id, date_created_gmt=created_at.isoformat())) == told

    def test_the_parcels_of_the_save_that_completed_are_in_its_email(self, shop, here, settings):
        id = shop.place()
        for number in ("Z1", "Z2"):
            shop.ship(id, number, link=f"https://dhl.example/{number}")
        shop.complete(id)
        body = post_of(shop, id)
        here.take(body)
        assert here.emails == ["order.paid", "order.completed"]
        parcels = here.changes[-1].details["parcels"]
        assert [(parcel["tracking_number"], parcel["carrier"]) for parcel in parcels] == [
            ("Z1", "DHL"),
            ("Z2", "DHL"),
        ]
        settings.NOTIFY_ON = ["order.shipped"]
        there = Seen()
        there.take(body)
        sent = [change for change in there.changes if change.notify and change.event == "order.shipped"]
        assert [change.parcel.tracking_number for change in sent] == ["Z2"]
        assert [parcel["tracking_number"] for parcel in sent[0].details["parcels"]] == ["Z1"]
        shop.ship(id, "Z3")
        shop.waiting.clear()
        settings.NOTIFY_ON = ["order.shipped", "order.completed"]
        assert here.take(post_of(shop, id)) == ["order.shipped"]

    def test_a_first_post_that_cannot_be_stored_says_why(self, shop, here):
        with pytest.raises(Rejected, match="its currency is missing"):
            here.take(post_of(shop, shop.place(), currency=None))


def test_each_status_of_the_platform_is_one_of_ours():
    assert {"", *Order.Status.values} >= set(read_module.STATUSES.values())
