"""What happened elsewhere is a fact: no odd value of an event makes its order disappear.

Each row of the table in docs/reference/events.md, alone and together, over a broker and over HTTP, and in
lists with good neighbours. tests/brokers/test_transports.py sends them through real brokers.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from local.machine import PROJECT
from orders.api import events_in
from orders.inbound.fallbacks import FALLBACKS
from tests.kit.api import Api, assert_problem, make_token
from tests.kit.events import PLACED_AT, SHOP, envelope, give, new_id, tell, told, topic_of
from tests.kit.profiles import save_profile
from tests.kit.words import (
    REGISTRY,
    EmailNotification,
    InboundDeadLetter,
    Order,
    our_id,
    read_timeline,
)
from web.api.fields import camel

pytestmark = pytest.mark.django_db(transaction=True)
URL = "/api/v1/events"
PLACED = dt.datetime.fromisoformat(PLACED_AT)
AT = PLACED + dt.timedelta(days=1)
LATER = "2999-01-01T00:00:00Z"
TEA = {"sku": "TEA", "name": "Tea", "quantity": 2, "unitAmount": 500}
STORED_TEA = {"sku": "TEA", "name": "Tea", "quantity": 2, "unit_amount": 500}
ABSENT = "ABSENT"  # the field is left out

Row = tuple[str, str, Any, str, Any]
LOCALES: list[Any] = ["crh@Latn", "", "x" * 35, "../de", 7, []]
#: The change, the field in the event, its value, the column, and what the order has then.
TABLE: list[Row] = [
    *(
        ("paid", "email", address, "email", "")
        for address in ("a..b@docomo.ne.jp", "john.@ezweb.ne.jp", "secret(at)example", "", None, ABSENT, 5)
    ),
    ("paid", "email", "x" * 250 + "@example.com", "email", ""),
    *(("paid", "locale", tag, "locale", "fr") for tag in LOCALES),
    ("paid", "locale", "sl_SL@euro", "locale", "sl"),
    ("paid", "locale", "de-US.UTF-8", "locale", "de"),
    ("paid", "locale", "en_US.UTF-8", "locale", "en_US"),
    ("paid", "locale", "de-Latn-DE-1996-variant-u-co-phonebk", "locale", "de-Latn-DE-1996"),
    ("paid", "name", "é" * 201, "name", "é" * 199 + "…"),
    ("paid", "name", 5, "name", ""),
    ("paid", "reference", "R" * 101, "reference", "R" * 99 + "…"),
    *(("paid", "items", items, "items", []) for items in ("tea", [5], [{"sku": "x"}])),
    *(
        ("paid", "items", [TEA | more], "items", [])
        for more in (
            {"quantity": 0},
            {"unitAmount": 1.5},
            {"unitAmount": None},
            {"name": ""},
            {"sku": "ㅤ"},
        )
    ),
    (
        "paid",
        "items",
        [TEA | {"sku": "S" * 101, "name": "N" * 201}],
        "items",
        [STORED_TEA | {"sku": "S" * 99 + "…", "name": "N" * 199 + "…"}],
    ),
    *(
        ("paid", "charges", charges, "charges", [])
        for charges in ("tea", [{"kind": "bribe", "amount": 1}], [{"kind": "fee", "amount": None}])
    ),
    (
        "paid",
        "charges",
        [{"kind": "discount", "amount": -1, "label": "L" * 101}],
        "charges",
        [{"kind": "discount", "amount": -1, "label": "L" * 99 + "…"}],
    ),
    *(
        ("paid", name, value, "details", {})
        for name in ("deliveryAddress", "billingAddress")
        for value in ("x", [5])
    ),
    ("paid", "deliveryAddress", ["x"] * 9, "details", {"delivery_address": ["x"] * 8}),
    *(("paid", name, 5, "details", {}) for name in ("deliveryMethod", "paymentMethod", "customerNote")),
    ("paid", "paymentMethod", "Visa 4242424242424242", "details", {"payment_method": "Visa …4242"}),
    ("paid", "customerNote", "n" * 501, "details", {"customer_note": "n" * 499 + "…"}),
    ("paid", "orderUrl", "javascript:alert(1)", "details", {}),
    *(("paid", "timeZone", value, "details", {}) for value in ("Mars/Base", "+15:00", "", 5)),
    *(
        ("paid", "placedAt", value, "created_at", AT)
        for value in ("yesterday", "", 5, ABSENT, None, LATER, "9999-12-31T23:59:59-12:00")
    ),
    *(("paid", "userId", value, "user_id", "derived") for value in (ABSENT, None, "", 42, "u" * 101)),
    ("completed", "trackingUrl", "javascript:alert(1)", "", "javascript"),
    ("completed", "trackingUrl", "https://www.dhl.com@evil.example/x", "", "evil.example"),
    ("completed", "trackingUrl", "https://track.example/" + "x" * 2000, "", "track.example"),
    ("cancelled", "reason", "Sold out. " * 60, "", "out.…"),
    ("cancelled", "reason", 98765, "", "98765"),
    ("cancelled", "wasPaid", "no", "", ""),
    ("cancelled", "wasPaid", ABSENT, "", ""),
]
#: Money, which is checked by its form.
MONEY = [("currency", "HRK"), ("currency", "XXZ"), ("totalAmount", 0)]


@pytest.fixture(autouse=True)
def _shop(settings: Any) -> None:
    settings.ORDER_SOURCES = [SHOP]
    settings.FAST_PATH = False
    save_profile(SHOP, default_locale="fr")


@pytest.fixture
def api() -> Api:
    return Api(make_token())


def odd(change: str, id: str, sequence: int = 2, /, **values: Any) -> dict[str, Any]:
    """Make an event with these values. Those that are ABSENT are left out."""
    event = told(change, id, sequence, **values)
    event["data"] = {name: value for name, value in event["data"].items() if value != ABSENT}
    event["timestamp"] = AT.isoformat()
    return event


def over_http(event: dict[str, Any]) -> dict[str, Any]:
    answer = Api(make_token()).post(URL, event)
    assert answer.status_code == 200, answer.content
    shown: dict[str, Any] = answer.json()
    assert shown["result"] == "processed"
    return shown


def over_a_broker(event: dict[str, Any]) -> dict[str, Any]:
    assert give(event) == "done", InboundDeadLetter.objects.first()
    return {}


def in_a_list(event: dict[str, Any]) -> dict[str, Any]:
    """Send it between two good events."""
    good = [told("paid", new_id(), 1) for _ in range(2)]
    answer = Api(make_token()).post(URL, [good[0], event, good[1]])
    first, shown, last = answer.json()["results"]
    assert (first["result"], shown["result"], last["result"]) == ("processed",) * 3
    assert (first["email"], first["warnings"], last["warnings"]) == ("queued", [], [])
    assert Order.objects.filter(id__in=[event["data"]["orderId"] for event in good]).count() == 2
    Order.objects.filter(id__in=[event["data"]["orderId"] for event in good]).delete()
    answered: dict[str, Any] = shown
    return answered


WAYS: list[Callable[[dict[str, Any]], dict[str, Any]]] = [over_http, over_a_broker, in_a_list]


def counted(field: str) -> float:
    return REGISTRY.get_sample_value("orderpost_event_fallbacks_total", {"field": field}) or 0


def lines(order: Order) -> list[str]:
    return [entry.text for entry in read_timeline(order=order) if entry.what == "warning"]


def email_of(order: Order) -> EmailNotification:
    return EmailNotification.objects.get(order_id=order.id, shop_copy_of=None)


class TestTable:
    @pytest.mark.parametrize("send", WAYS)
    @pytest.mark.parametrize(
        ("change", "name", "value", "column", "expected"), TABLE, ids=lambda value: repr(value)[:30]
    )
    def test_an_unusable_value_has_its_fallback_a_warning_a_line_and_a_count(
        self, send, change, name, value, column, expected
    ):
        id, before = new_id(), counted(name)
        shown = send(odd(change, id, **{name: value}))
        order = Order.objects.get(id=id)
        (line,) = lines(order)
        assert line.startswith(f"order.{change}, sequence 2: {name}: ") and "secret" not in line
        assert counted(name) == before + 1
        if shown:
            (warning,) = shown["warnings"]
            assert line.endswith(warning)
            is_sent = name != "email"
            assert shown["email"] == ("queued" if is_sent else "none")
            assert shown.get("reason") == (None if is_sent else "no usable address")
        if expected == "derived":
            expected = uuid.uuid5(order.id, SHOP)
        email = email_of(order)
        if column:
            assert getattr(order, column) == expected
        elif name == "reason" and value != 98765:
            assert expected in email.body_text
        elif name == "wasPaid":
            assert (order.status, email.status) == ("cancelled", "pending")
        else:
            assert expected not in email.body_text
        assert order.status == change
        if name != "email":
            assert (email.status, email.recipient_email) == ("pending", "ann@example.com")

    @pytest.mark.parametrize("send", WAYS)
    @pytest.mark.parametrize(("name", "value"), MONEY)
    def test_money_of_the_right_form_needs_no_fallback(self, send, name, value):
        id = new_id()
        shown = send(odd("paid", id, **{name: value, "items": ABSENT}))
        order = Order.objects.get(id=id)
        assert value in (order.currency, order.total_amount)
        assert shown.get("warnings", []) == lines(order) == []
        email = email_of(order)
        assert email.status == "pending" and (name != "currency" or value in email.body_text)

    @pytest.mark.parametrize("send", WAYS)
    def test_all_of_them_together(self, send):
        everything = {
            **{"email": "a..b@docomo.ne.jp", "locale": "crh@Latn", "name": "N" * 201, "reference": "R" * 101},
            **{"items": "tea", "placedAt": LATER, "userId": 42, "currency": "HRK", "totalAmount": 0},
        }
        cancelled = {"reason": "r" * 501, "wasPaid": "no", "refundedAmount": 0}
        id = new_id()
        shown = send(odd("cancelled", id, **everything, **cancelled))
        order = Order.objects.get(id=id)
        assert (order.email, order.locale, order.items, order.created_at) == ("", "fr", [], AT)
        assert (order.currency, order.total_amount) == ("HRK", 0)
        fields = {line.split(": ")[1] for line in lines(order)}
        assert fields == {
            *("email", "locale", "name", "reference", "items", "placedAt", "userId", "reason", "wasPaid"),
        }
        assert len(shown.get("warnings", fields)) == len(fields) == 9
        assert (email_of(order).status, email_of(order).last_error) == ("dead_lettered", "no usable address")

    def test_the_reference_shows_each_field_that_has_one(self):
        page = (PROJECT / "docs" / "reference" / "events.md").read_text()
        table = page.partition("| field | unusable | then |")[2].partition("\n\n")[0]
        names = {name.strip("` ") for row in table.splitlines()[2:] for name in row.split("|")[1].split(",")}
        assert names == {camel(name) for name in FALLBACKS} | {"item texts"}

    def test_an_order_without_a_reference_has_the_other_systems_id(self):
        tell("paid", "A-7", 2, reference=5)
        assert Order.objects.get(id=our_id(source=SHOP, id="A-7")).reference == "A-7"

    def test_a_derived_user_is_the_same_in_every_event_of_the_order_and_no_other(self):
        first, second = new_id(), new_id()
        for id, sequence in ((first, 1), (first, 2), (second, 1)):
            give(odd("paid", id, sequence, userId=ABSENT))
        users = {order.id: order.user_id for order in Order.objects.all()}
        assert len(set(users.values())) == 2 and not set(users) & set(users.values())

    def test_a_placed_at_in_the_future_of_an_event_without_a_time_is_now(self):
        event = odd("paid", new_id(), placedAt=LATER)
        del event["timestamp"]
        give(event)
        age = dt.datetime.now(dt.UTC) - Order.objects.get().created_at
        assert abs(age) < dt.timedelta(minutes=1)

    def test_history_has_fallbacks_and_no_email(self, api):
        answer = api.post(URL, odd("paid", id := new_id(), email="x", notify=False)).json()
        assert (answer["email"], answer["reason"]) == ("none", "notify is false")
        assert len(answer["warnings"]) == len(lines(Order.objects.get(id=id))) == 1
        assert not EmailNotification.objects.exists()

    @pytest.mark.parametrize("value", ["false", 0, "no", []])
    def test_a_notify_that_is_no_boolean_sends_nothing_and_says_so(self, api, value):
        answer = api.post(URL, odd("paid", id := new_id(), notify=value)).json()
        assert (answer["email"], answer["reason"]) == ("none", "notify is false")
        assert answer["warnings"] == ["notify: This must be true or false. No e-mail is sent."]
        assert Order.objects.filter(id=id).exists() and not EmailNotification.objects.exists()

    def test_an_order_keeps_the_newest_lines(self):
        id = new_id()
        for sequence in range(1, 103):
            give(odd("paid", id, sequence, name=5))
        shown = lines(Order.objects.get(id=id))
        assert len(shown) == 100 and shown[-1].startswith("order.paid, sequence 102: name: ")

    def test_an_event_with_fallbacks_needs_no_more_statements(self, api, monkeypatch):
        monkeypatch.setattr(events_in, "_check_pause", lambda: None)
        event = odd("paid", new_id(), email="x", name="n" * 201, items="tea")
        with CaptureQueriesContext(connection) as captured:
            assert api.post(URL, event).status_code == 200
        assert len(captured) <= 1 + 3 + 2  # Django counts BEGIN and COMMIT


class TestRefused:
    @pytest.mark.parametrize(
        ("change", "values"),
        [
            ("paid", {"orderId": 7}),
            ("paid", {"orderId": ""}),
            ("paid", {"status": "shipped"}),
            ("paid", {"status": "pending"}),
            ("paid", {"totalAmount": "1000"}),
            ("paid", {"totalAmount": 10.5}),
            ("paid", {"totalAmount": -1}),
            ("paid", {"totalAmount": None}),
            ("paid", {"currency": "eur"}),
            ("paid", {"currency": "EURO"}),
            ("paid", {"currency": None}),
            ("paid", {"refundedAmount": 1}),
            ("refunded", {"refundedAmount": 999, "amount": 999}),
            ("part_refunded", {"totalAmount": 0, "refundedAmount": 0, "amount": 0}),
            *(
                ("cancelled", {name: f"a{character}b"})
                for name in ("email", "name", "reference", "locale", "userId", "placedAt", "reason")
                for character in ("\n", "\r", "\x00", "\x1b", "\u2028")
            ),
            ("paid", {"items": [TEA | {"name": "a\nb"}]}),
        ],
    )
    def test_identity_status_money_and_control_characters_refuse(self, api, change, values):
        event = odd(change, new_id(), **values)
        assert_problem(api.post(URL, event), 422, "unusable-event")
        assert give(event) == "dead"
        assert not Order.objects.exists() and not EmailNotification.objects.exists()


class TestZero:
    def test_a_total_of_0_is_refunded_and_shown(self, api, admin_client):
        id = new_id()
        zero = {"totalAmount": 0, "items": ABSENT}
        over_http(odd("paid", id, 1, **zero))
        over_http(odd("completed", id, 2, **zero))
        over_http(odd("refunded", id, 3, **zero, refundedAmount=0, amount=0))
        order = Order.objects.get(id=id)
        assert (order.status, order.total_amount, order.refunded_amount) == ("refunded", 0, 0)
        assert set(EmailNotification.objects.values_list("status", flat=True)) == {"pending"}
        assert api.get(f"/api/v1/orders/{id}").json()["total_amount"] == 0
        assert admin_client.get(f"/admin/orders/order/{id}/change/").status_code == 200
        assert api.get(f"/api/v1/orders/{id}/timeline").status_code == 200

    @pytest.mark.parametrize("change", ["paid", "cancelled"])
    def test_sums_above_a_total_of_0_are_refused(self, change):
        assert give(odd(change, new_id(), totalAmount=0, refundedAmount=1)) == "dead"

    def test_our_own_orders_have_a_total(self, api):
        body = {"user_id": str(uuid.uuid4()), "email": "ann@example.com", "total_amount": 0}
        assert_problem(api.post("/api/v1/orders", body), 400, "validation")
        with pytest.raises(Exception, match="orders_total_in_range"), transaction.atomic():
            Order.objects.create(user_id=uuid.uuid4(), email="a@example.com", total_amount=0)


class TestAnswers:
    def test_an_event_that_sends_its_email_says_so(self, api):
        answer = api.post(URL, event := told("paid", new_id(), 1)).json()
        assert answer == {
            "event_id": event["eventId"],
            "result": "processed",
            "email": "queued",
            "warnings": [],
        }
        again = api.post(URL, event).json()
        assert (again["result"], again["email"]) == ("repeated", "none")
        assert again["reason"] == "the event was processed before"

    @pytest.mark.parametrize(
        ("change", "sequence", "reason"),
        [("paid", 2, "already sent for sequence 2"), ("confirmed", 3, "this event sends none")],
    )
    def test_an_event_that_sends_none_says_why(self, api, change, sequence, reason):
        id = new_id()
        tell("paid", id, 2)
        answer = api.post(URL, told(change, id, sequence)).json()
        assert (answer["result"], answer["email"], answer["reason"]) == ("processed", "none", reason)

    def test_unknown_members_are_named_and_change_nothing(self, api):
        more = {
            **{"tracking_url": "https://x.example", "TOTALamount ": 5, "shippingMethod": {"name": "post"}},
            **{"placed-at": PLACED_AT, "emial": "x@example.com"},
        }
        tea = TEA | {"unit_amount": 5, "colour": "green"}
        answer = api.post(URL, told("completed", id := new_id(), 1, **more, items=[tea, tea])).json()
        assert sorted(answer["warnings"]) == sorted([
            "tracking_url: unknown; did you mean trackingUrl?",
            "TOTALamount : unknown; did you mean totalAmount?",
            "shippingMethod: unknown",
            "placed-at: unknown; did you mean placedAt?",
            "emial: unknown",
            "items.unit_amount: unknown; did you mean unitAmount?",
            "items.colour: unknown",
        ])  # fmt: skip
        assert answer["email"] == "queued" and lines(Order.objects.get(id=id)) == []

    def test_many_unknown_members_are_counted(self, api):
        many = {f"field{number}": 1 for number in range(1000)}
        warnings = api.post(URL, told("paid", new_id(), 1, **many)).json()["warnings"]
        assert len(warnings) == 21 and warnings[-1] == "980 more members are unknown"

    def test_a_payments_unknown_members_are_named_too(self, api):
        order = api.post("/api/v1/orders", {
            "user_id": str(uuid.uuid4()), "email": "ann@example.com", "total_amount": 500,
        }).json()  # fmt: skip
        event = envelope("payment.payment.succeeded.v1", {"orderId": order["id"], "currencyCode": "USD"})
        answer = api.post(URL, event).json()
        assert (answer["result"], answer["warnings"]) == ("processed", ["currencyCode: unknown"])
        assert "email" not in answer
        event = envelope("warehouse.stock.reserved.v1", {"orderId": order["id"]})
        assert "warnings" not in api.post(URL, event).json()

    def test_a_bound_token_gets_the_warnings_of_its_own_events_alone(self, settings):
        settings.ORDER_SOURCES = [SHOP, "shop-b"]
        bound = Api(make_token(source=SHOP))
        tell("paid", theirs := new_id(), 1, source="shop-b")
        own, other = odd("paid", id := new_id(), email="x", note=1), odd("paid", theirs, 3, email="x", note=1)
        mine, refused = bound.post(URL, [own, other]).json()["results"]
        assert mine["warnings"][1:] == ["note: unknown"] and "email: " in mine["warnings"][0]
        assert refused.keys() == {"event_id", "result", "problem"} and refused["result"] == "refused"
        shown = bound.get(f"/api/v1/orders/{id}/timeline").json()["results"]
        assert [entry["text"] for entry in shown if entry["what"] == "warning"]
        assert lines(Order.objects.get(id=theirs)) == []

    def test_every_reported_topic_has_the_members(self, api):
        for change in ("placed", "confirmed", "completed", "cancelled"):
            answer = api.post(URL, told(change, new_id(), 1)).json()
            assert {"email", "warnings"} <= answer.keys(), topic_of(change)


def test_a_locale_that_is_no_language_tag_is_rendered_in_the_shops_language():
    save_profile(SHOP, default_locale="de")
    give(odd("paid", new_id(), locale="crh@Latn"))
    email = EmailNotification.objects.get()
    assert email.locale == "de" and "Guten Tag Ann" in email.body_text
    (line,) = lines(Order.objects.get())
    assert line.endswith(
        "locale: This is not a language tag, such as en or de-AT."
        " It became the default of the shop's profile."
    )
