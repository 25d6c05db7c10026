"""The admin's one search box: an exact value leads straight to what it names."""

from __future__ import annotations

import pytest

from tests.kit.admin import EVENTS, LETTERS, MAILS, ORDERS, dead_letter, make_event
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.people import staff_client

pytestmark = pytest.mark.django_db
SEARCH = "/admin/search/"


def test_each_name_of_an_order_leads_to_it(admin_client):
    order = make_order(reference="R-77", correlation_id="checkout-1", email="Ann@example.com")
    make_order(reference="R-78", email="bob@example.com")
    for term in ("R-77", str(order.id), "checkout-1", " ann@example.com "):
        assert admin_client.get(SEARCH, {"q": term}).url == f"{ORDERS}{order.id}/change/"


def test_each_name_of_an_email_leads_to_it(admin_client):
    names = {"provider_message_id": "<m1@sendgrid>", "correlation_id": "saga-1"}
    mail = make_mail(recipient_email="Ann@Example.com", **names)
    make_mail(recipient_email="bob@example.com")
    for term in (*names.values(), str(mail.id), "ann@example.com", "ANN@example.com"):
        assert admin_client.get(SEARCH, {"q": term}).url == f"{MAILS}{mail.id}/change/"


def test_an_event_is_found_by_its_id(admin_client):
    event, letter = make_event(), dead_letter()
    assert admin_client.get(SEARCH, {"q": str(event.id)}).url == f"{EVENTS}{event.id}/change/"
    assert admin_client.get(SEARCH, {"q": str(letter.event_id)}).url == f"{LETTERS}{letter.id}/change/"


def test_several_hits_are_listed_and_none_teaches_what_can_be_searched(admin_client):
    order = make_order(email="ann@example.com", reference="R-1")
    make_mail(order_id=order.id, recipient_email="ann@example.com")
    page = admin_client.get(SEARCH, {"q": "ann@example.com"})
    assert [hit.kind for hit in page.context["hits"]] == ["order", "e-mail"]
    for term in ("nobody@example.com", "", "%", "a\x00b"):
        assert b"a whole, exact value" in admin_client.get(SEARCH, {"q": term}).content


def test_nobody_finds_what_they_may_not_see():
    order = make_order(email="ann@example.com")
    make_mail(order_id=order.id, recipient_email="ann@example.com")
    nobody = staff_client(name="nobody").get(SEARCH, {"q": "ann@example.com"})
    assert b"Nothing was found for" in nobody.content
    page = staff_client("view_order").get(SEARCH, {"q": "ann@example.com"})
    assert page.url == f"/admin/orders/order/{order.id}/change/"
