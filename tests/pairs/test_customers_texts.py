"""Texts of customers in every place that shows them, and who gets those that only the customer may get."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.kit.admin import downloaded
from tests.kit.api import api, assert_problem, order_body
from tests.kit.events import give, told
from tests.kit.months import Steps
from tests.kit.words import (
    DomainEvent,
    EmailNotification,
    IdempotencyKey,
    Order,
    Status,
    erase_person,
    export_person,
)
from tests.rules.notifications.test_links import linked, seen

__all__ = ["api"]  # a fixture

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
ORDERS = "/admin/orders/order/"
HOSTILE = "<b>Hi</b> ev\u200bil.com \u202ehttp://evil.example www.evil.de a@evil.com {{ 7 * 7 }} %(name)s"
#: The same text in the admin and in files. E-mails also break its links.
ONE_LINE = "<b>Hi</b> evil.com http://evil.example www.evil.de a@evil.com {{ 7 * 7 }} %(name)s"
LINK = "https://shop.example.com/orders/42?key=wc_order_7a"
DETAILS: dict[str, Any] = {
    "delivery_address": ["Ann Lee", HOSTILE],
    "billing_address": [HOSTILE, "Berlin"],
    "delivery_method": HOSTILE,
    "payment_method": HOSTILE,
    "customer_note": HOSTILE,
}
CHARGES = [{"kind": "fee", "label": HOSTILE, "amount": 10}]


@pytest.fixture(autouse=True)
def _no_fast_path(settings):
    settings.FAST_PATH = False


def place_and_pay(api: Any, **fields: Any) -> EmailNotification:
    path = api.place(**fields)
    assert api.post(f"{path}/pay").status_code == 200
    return EmailNotification.objects.get(event_type="order.paid", order_id=path.rpartition("/")[2])


def end(email: EmailNotification) -> None:
    EmailNotification.objects.filter(id=email.id).update(
        status=Status.SENT, sent_at=email.created_at, provider="smtp"
    )


def copy_to(api: Any, email: EmailNotification, address: str = "", **more: Any) -> EmailNotification:
    end(email)
    body = {"recipient_email": address, **more} if address else {}
    answer = api.post(f"/api/v1/notifications/{email.id}/copies", body)
    assert answer.status_code == 201, answer.content
    return EmailNotification.objects.get(id=answer.json()["id"])


def check_text(text: str, *, times: int) -> None:
    assert linked(text.partition("\n-- \n")[0]) == []
    assert text.count("{{ 7 * 7 }} %(name)s") == times
    assert "\u202e" not in text and "\u200b" not in text


def test_a_hostile_text_is_one_plain_line_everywhere(api, admin_client):
    email = place_and_pay(api, name="Ann", charges=CHARGES, **DETAILS)
    path = f"{ORDERS}{email.order_id}/"
    check_text(email.body_text, times=6)
    check_text(seen(email.body).partition("You are receiving")[0], times=6)
    assert "<b>Hi" not in email.body
    preview = admin_client.get(f"{path}emails/body/", {"event": "order.paid", "locale": "en"})
    check_text(seen(preview.content.decode()).partition("You are receiving")[0], times=6)
    page = admin_client.get(f"{path}change/").content.decode()
    assert page.count("&lt;b&gt;Hi&lt;/b&gt; evil.com http://evil.example") == 6
    assert "<b>Hi" not in page and "\u202e" not in page and 'href="http://evil' not in page
    (row,) = downloaded(admin_client, ORDERS)
    assert json.loads(row["details"])["customer_note"] == ONE_LINE
    assert json.loads(row["charges"])[0]["label"] == ONE_LINE
    copy = copy_to(api, email, "bob@example.com")
    assert "Your note" not in copy.body_text and not copy.is_private
    check_text(copy.body_text, times=5)


def test_an_answer_has_each_detail_that_was_given_and_no_other(api):
    details = {**DETAILS, "order_url": LINK, "customer_note": "Ring twice"}
    answer = api.post("/api/v1/orders", order_body(**details)).json()
    clean = json.loads(json.dumps(details).replace(json.dumps(HOSTILE), json.dumps(ONE_LINE)))
    assert {name: answer[name] for name in details} == clean
    plain = api.post("/api/v1/orders", order_body()).json()
    assert not plain.keys() & {*details, "charges"}


@pytest.mark.parametrize(
    "fields",
    [
        {"delivery_address": []},
        {"delivery_address": ["x"] * 9},
        {"delivery_address": ["x" * 101]},
        {"billing_address": [""]},
        {"billing_address": "Berlin"},
        {"delivery_method": "x" * 101},
        {"payment_method": "Visa 4242 4242 4242 4242"},
        {"payment_method": "4242-4242-424-2"},
        {"customer_note": "x" * 501},
        {"order_url": "javascript:alert(1)"},
        {"order_url": "https://shop.example.com@evil.example/x"},
        {"charges": [{"kind": "bribe", "amount": 1}]},
        {"charges": [{"kind": "fee", "amount": 10**12 + 1}]},
        {"charges": [{"kind": "fee", "amount": 1, "included": True}]},
        {"charges": [{"kind": "fee", "amount": 1, "label": "x" * 101}]},
        {"charges": [{"kind": "fee", "amount": 0}] * 21},
        {"items": [{"sku": "s", "name": "n", "quantity": 1, "unit_amount": 1, "total_amount": -1}]},
    ],
)
def test_the_api_refuses_what_does_not_fit(api, fields):
    assert_problem(api.post("/api/v1/orders", order_body(**fields)), 400, "validation")


def test_a_fact_is_cut_instead(settings):
    settings.ORDER_SOURCES = ["shop-a"]
    data = {
        "deliveryAddress": ["x" * 101, *map(str, range(9))],
        "billingAddress": 5,
        "paymentMethod": "Visa 4242 4242 4242 4242",
        "customerNote": "y" * 501,
        "orderUrl": "javascript:alert(1)",
        "charges": [{"kind": "gift_card", "label": "GIFT-2ZX9-77QA", "amount": -100}],
    }
    assert give(told("paid", "A-1", 1, **data)) == "done"
    order = Order.objects.get()
    assert order.details == {
        "delivery_address": ["x" * 99 + "…", *map(str, range(7))],
        "payment_method": "Visa …4242",
        "customer_note": "y" * 499 + "…",
    }
    assert order.charges == [{"kind": "gift_card", "label": "…77QA", "amount": -100}]
    (email,) = EmailNotification.objects.all()
    assert "4242 4242" not in email.body_text and "GIFT" not in email.body_text


class TestWhoMayGetIt:
    def test_the_customer_gets_the_stored_text_again(self, api):
        email = place_and_pay(api, email="ann@example.com", customer_note="Ring twice", order_url=LINK)
        assert email.is_private and LINK in email.body_text and LINK.replace("&", "&amp;") in email.body
        for address in ("", "Ann@Example.com"):
            copy = copy_to(api, email, address)
            assert (copy.body, copy.body_text, copy.is_private) == (email.body, email.body_text, True)

    def test_another_address_gets_neither_the_note_nor_the_link(self, api):
        note = {"customer_note": "Ring twice", "order_url": LINK, "payment_method": "Invoice"}
        email = place_and_pay(api, email="ann@example.com", **note)
        copy = copy_to(api, email, "bob@example.com")
        said = copy.subject + copy.body + copy.body_text
        assert "Ring twice" not in said and LINK not in said and "View your order" not in said
        assert "Payment: Invoice" in copy.body_text and not copy.is_private
        again = copy_to(api, copy, "carl@example.com")
        assert (again.body, again.is_private) == (copy.body, False)

    def test_the_address_that_becomes_the_orders_gets_it_whole(self, api):
        email = place_and_pay(api, email="ann@example.com", customer_note="Ring twice")
        copy = copy_to(api, email, "ann.lee@example.com", update_order=True)
        assert copy.body == email.body and copy.is_private

    def test_a_copy_of_any_other_email_is_the_stored_text(self, api):
        email = place_and_pay(api, payment_method="Invoice")
        EmailNotification.objects.filter(id=email.id).update(body_text="as it was stored")
        assert copy_to(api, email, "bob@example.com").body_text == "as it was stored"

    def test_a_note_that_the_order_lost_since_does_not_leave_either(self, settings, api):
        settings.ORDER_SOURCES = ["shop-a"]
        assert give(told("paid", "A-1", 1, customerNote="Ring twice")) == "done"
        (email,) = EmailNotification.objects.all()
        assert give(told("paid", "A-1", 2, notify=False)) == "done"
        assert "Ring twice" not in copy_to(api, email, "bob@example.com").body_text

    def test_the_page_says_so(self, api, admin_client):
        email = place_and_pay(api, customer_note="Ring twice")
        end(email)
        says = "rendered again without them"
        assert says in admin_client.get(f"{ORDERS}copies/{email.id}/").content.decode()
        other = place_and_pay(api)
        end(other)
        assert says not in admin_client.get(f"{ORDERS}copies/{other.id}/").content.decode()

    def test_emails_about_parcels_and_money_show_no_details(self, api):
        email = place_and_pay(api, total_amount=1000, order_url=LINK, delivery_address=["Ann Lee", "Berlin"])
        path = f"/api/v1/orders/{email.order_id}"
        api.post(f"{path}/shipments", {"carrier": "DHL"})
        api.post(f"{path}/refund", {"amount": 10})
        shipped, refunded = EmailNotification.objects.exclude(id=email.id).order_by("id")
        assert "Delivery address:\nAnn Lee\nBerlin" in shipped.body_text
        assert "Berlin" not in refunded.body_text
        assert LINK not in shipped.body_text + refunded.body_text
        assert not shipped.is_private and not refunded.is_private


def stored_answer() -> str:
    return str(IdempotencyKey.objects.values().get())


def test_each_is_exported_erased_and_in_no_event(api):
    details = {**DETAILS, "customer_note": "Ring twice", "order_url": LINK, "charges": CHARGES}
    email = place_and_pay(api, email="ann@example.com", **details)
    body = order_body(email="ann@example.com", **details)
    assert api.post("/api/v1/orders", body, key="once").status_code == 201
    assert "Ring twice" in stored_answer()
    assert not any(
        "Ring" in str(event.payload) or "evil" in str(event.payload) for event in DomainEvent.objects.all()
    )
    exported, _ = export_person(email="ann@example.com", report=Steps())["orders"]
    assert (
        exported["details"]["customer_note"] == "Ring twice" and exported["charges"][0]["label"] == ONE_LINE
    )
    erase_person(email="ann@example.com", report=Steps(), force=True)
    for order in Order.objects.all():
        assert (order.details, order.charges) == ({}, [{"kind": "fee", "amount": 10}])
    assert not re.search("Ring|wc_order|evil", stored_answer())
    email.refresh_from_db()
    assert "Ring" not in email.body + email.body_text


def test_a_report_brings_nothing_of_an_erased_person_back(settings):
    settings.ORDER_SOURCES = ["shop-a"]
    fields = {"customerNote": "Ring twice", "charges": [{"kind": "fee", "label": "For Ann", "amount": 10}]}
    assert give(told("paid", "A-1", 1, **fields)) == "done"
    erase_person(email="ann@example.com", report=Steps(), force=True)
    assert give(told("completed", "A-1", 2, **fields)) == "done"
    order = Order.objects.get()
    assert (order.details, order.charges) == ({}, [{"kind": "fee", "amount": 10}])
