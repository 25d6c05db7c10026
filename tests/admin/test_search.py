"""The admin's search box, and the searches of orders and e-mails: they find what people have at hand."""

from __future__ import annotations

import datetime as dt
from urllib.parse import quote

import pytest
from django.db import connection
from django.db.models.functions import Now

from operations.status import read_status
from orders import models
from orders.models import Shipment
from runtime.binding import UNBOUND
from runtime.database.indexes import select_missing
from runtime.database.parts import READ
from tests.kit.admin import (
    EVENTS,
    LETTERS,
    MAILS,
    ORDERS,
    dead_letter,
    listed,
    make_event,
    statements_of,
)
from tests.kit.mails import make_mail
from tests.kit.orders import make_order, make_orders
from tests.kit.people import staff_client
from tests.kit.plans import emptied, plan_of
from tests.kit.words import Order

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


def test_the_overview_stands_once_above_the_results(admin_client):
    assert admin_client.get(SEARCH, {"q": "nobody"}).content.count(b'<a href="/admin/">Overview</a>') == 1


def test_several_hits_are_listed_and_none_teaches_what_can_be_searched(admin_client):
    order = make_order(email="ann@example.com", reference="R-1")
    make_mail(order_id=order.id, recipient_email="ann@example.com")
    page = admin_client.get(SEARCH, {"q": "ann@example.com"})
    assert [hit.kind for hit in page.context["hits"]] == ["order", "e-mail"]
    for term in ("nobody@example.com", "", "%", "a\x00b"):
        assert b"a tracking number, or four characters" in admin_client.get(SEARCH, {"q": term}).content


def test_each_way_to_write_a_reference_or_an_address_leads_to_it(admin_client):
    order = make_order(reference="L-1", email="Lena@example.com")
    make_order(reference="l-2", email="helena@example.com")
    marked = make_order(reference="#1001", email="bob@example.com")
    for term in ("lena", "LENA@", "l-1", "#L-1", " L-1"):
        assert admin_client.get(SEARCH, {"q": term}).url == f"{ORDERS}{order.id}/change/", term
    for term in ("1001", "#1001", "#10"):
        assert admin_client.get(SEARCH, {"q": term}).url == f"{ORDERS}{marked.id}/change/", term


def test_the_beginning_of_a_reference_finds_each_with_it_and_a_whole_one_itself_only(
    admin_client,
):
    orders = {reference: make_order(reference=reference) for reference in ("L-1", "l-10", "#L-11", "L_1")}
    for path in (SEARCH, ORDERS):
        page = admin_client.get(path, {"q": "L-"}).content.decode()
        assert {name: str(order.id) in page for name, order in orders.items()} == {
            "L-1": True,
            "l-10": True,
            "#L-11": True,
            "L_1": False,
        }
    assert listed(admin_client, ORDERS, q="l-1") == [orders["L-1"].id]
    assert listed(admin_client, ORDERS, q="%") == listed(admin_client, ORDERS, q="#") == []


def test_four_emails_of_a_person_can_be_told_apart(admin_client):
    for number, mark in enumerate(["", "delivered_at", "bounced_at", "complained_at"]):
        order = make_order(reference=f"L-{number}")
        fields = {mark: Now()} if mark else {}
        make_mail(
            **{"order_id": order.id, "recipient_email": "lena@example.com", "status": "sent"} | fields,
            subject=f"Subject {number}",
        )
    for path in (SEARCH, MAILS):
        page = admin_client.get(path, {"q": "lena"}).content.decode()
        for number, state in enumerate(["sent", "delivered", "bounced", "marked as spam"]):
            row = page.split(f"Subject {number}")[1].split("</tr>")[0]
            assert f"L-{number}" in row and f">{state}<" in row, row


FINDS = [  # what a person says at the telephone, and whether it finds the order of `Özlem O'Brien-Schmidt`
    ("schm", True),
    ("özlem", True),
    ("ÖZL", True),
    ("schmidt özlem", True),
    ("brien", True),
    ("chmidt", False),
    ("özlem meyer", False),
    ("b", False),
    ("beans.example", True),
    ("@Beans.Example", True),
    ("example", False),
    ("ans.example", False),
    ("2026-00", True),
    ("0417", True),
    ("417", False),
    ("2_26", False),
    ("----", False),
    ("4341", True),
    ("0340434123", True),
    ("'\\ & | !:*", False),
]


def test_words_of_a_name_a_domain_and_parts_of_numbers_find_an_order_and_its_emails(admin_client):
    order = make_order(reference="SHOP-2026-00417", name="Özlem O'Brien-Schmidt", email="typo@Beans.example")
    Shipment.objects.create(order=order, tracking_number="00340434123", sequence=1)
    mail = make_mail(order_id=order.id, recipient_email="typo@beans.example")
    make_mail(order_id=make_order(reference="R-9", name="Bob", email="bob@tea.test").id)
    for term, is_hit in FINDS:
        assert listed(admin_client, ORDERS, q=term) == [order.id] * is_hit, term
        assert listed(admin_client, MAILS, q=term) == [mail.id] * is_hit, term


def test_a_list_of_too_many_says_so_and_reads_ten_thousand_at_most(admin_client, monkeypatch):
    monkeypatch.setattr(models, "READ", 110)
    for number in range(120):
        make_order(reference=f"S-{number}", name="Anna", email=f"anna{number}@example.com")
    few = make_order(reference="T-1", name="Ann", email="t@example.org")
    Order.objects.filter(id=few.id).update(created_at=Now() + dt.timedelta(seconds=1))
    for path, term, is_cut in ((ORDERS, "an", True), (SEARCH, "an", True), (ORDERS, "example.org", False)):
        page = admin_client.get(path, {"q": term}, follow=True).content.decode()
        assert ("Too many: type more." in page) is is_cut, (path, term)
    assert listed(admin_client, ORDERS, q="example.org") == [few.id]
    hits = Order.objects.search("an", shops=UNBOUND)
    assert (len(hits.ids), hits.is_cut) == (100, True)


def test_a_search_of_parts_needs_no_statement_of_its_own_for_the_extension(admin_client):
    texts = statements_of(admin_client, SEARCH, q="00340434123")
    assert len([text for text in texts if "pg_trgm" in text]) == 1
    assert [text for text in texts if "pg_trgm" in text and "shipments" not in text] == []


def test_without_the_extension_no_part_is_searched_and_nothing_misses_an_index(admin_client):
    order = make_order(reference="SHOP-2026-00417", name="Ann")
    Shipment.objects.create(order=order, tracking_number="00340434123", sequence=1)
    assert listed(admin_client, ORDERS, q="4341") == [order.id]
    with connection.cursor() as cursor:
        cursor.execute("DROP EXTENSION pg_trgm CASCADE")
        cursor.execute(select_missing())
        assert cursor.fetchall() == []
    assert listed(admin_client, ORDERS, q="4341") == []
    assert listed(admin_client, ORDERS, q="00417") == listed(admin_client, ORDERS, q="ann") == [order.id]
    assert read_status()["database"]["finds_parts"] is False


@pytest.mark.parametrize("path", [SEARCH, ORDERS, MAILS])
@pytest.mark.parametrize(
    ("term", "says"),
    [
        (
            "#nobody",
            "references that are or begin with nobody, with or without #, references and tracking",
        ),
        ("no@example.com", "the whole address no@example.com, in any case"),
        ("01a20c8d-f8ff-748a-b3a8-7f3857def3dd", "the id 01a20c8d-f8ff-748a-b3a8-7f3857def3dd"),
    ],
)
def test_an_empty_result_says_what_was_searched_and_how(admin_client, path, term, says):
    assert f"Searched for {says}" in admin_client.get(path, {"q": term}).content.decode()


def test_an_empty_result_says_that_filters_were_chosen(admin_client):
    page = admin_client.get(MAILS, {"q": "lena", "status": "sent"}).content
    assert b"and only within the chosen filters" in page


def test_a_list_is_filtered_by_shop(admin_client, settings):
    assert b"By shop" not in admin_client.get(MAILS).content
    settings.ORDER_SOURCES = ["shop-a", "shop-b"]
    orders = {source: make_order(source=source) for source in ("", "shop-a")}
    mails = {source: make_mail(order_id=order.id, source=source) for source, order in orders.items()}
    for shop, source in (("own orders", ""), ("shop-a", "shop-a")):
        assert listed(admin_client, ORDERS, shop=shop) == [orders[source].id]
        assert listed(admin_client, MAILS, shop=shop) == [mails[source].id]
    assert listed(admin_client, ORDERS, shop="shop-b") == listed(admin_client, MAILS, shop="shop-b") == []


#: Orders and e-mails of the test of plans. By hand it ran with 1,000,000 of each: no statement of a search
#: visited more than 200 rows or 700 pages, and none of a filter by shop more than 400 rows or 900 pages.
MANY = 40_000


def test_a_list_of_many_reads_few_rows_and_pages(admin_client, settings):
    settings.ORDER_SOURCES = ["shop-a", "shop-b"]
    emptied("orders")
    emptied("email_notifications")
    make_orders(MANY, owner="mixed")
    make_order(source="shop-b")
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO email_notifications (id, status, retry_count, max_retries, last_error, errors,
                provider, provider_message_id, correlation_id, traceparent, event_type, recipient_email,
                to_name, locale, subject, body, body_text, idempotency_key, order_id, sent_at, source)
            SELECT uuidv7(), 'sent', 0, 3, '', '[]', '', '', 'c', '', 'order.paid', email, '', 'en',
                'Paid', '<p>Paid</p>', 'Paid', id::text, id, now(), source
            FROM orders ORDER BY created_at
            """
        )
        cursor.execute("ANALYZE email_notifications")
    searches = ["user7", "user7@example.com", "s-", "#s-123", "r-7", "nobody"]
    filters = ["", "shop=own orders", "shop=shop-a", "shop=shop-b", "status=sent", "event_type=order.paid"]
    queries = [*(f"q={text}" for text in map(quote, searches)), *filters, "q=user7&shop=shop-a&age=24h"]
    for path in [f"{page}?{query}" for page in (ORDERS, MAILS) for query in queries]:
        if path.endswith("event_type=order.paid") and ORDERS in path:
            continue
        texts = statements_of(admin_client, path)
        assert len(texts) <= 13, path
        for text in texts:
            if text.strip().startswith(("SELECT", "(SELECT")):
                plan = plan_of(text)
                most = 30_000 if "COUNT(" in text else 5000  # it counts 10,000 at most
                most = READ if "AS newest" in text else most
                assert plan.visited <= most, f"{path}: {plan} {text}"


def test_nobody_finds_what_they_may_not_see():
    order = make_order(email="ann@example.com")
    make_mail(order_id=order.id, recipient_email="ann@example.com")
    nobody = staff_client(name="nobody").get(SEARCH, {"q": "ann@example.com"})
    assert b"Nothing was found for" in nobody.content
    page = staff_client("view_order").get(SEARCH, {"q": "ann@example.com"})
    assert page.url == f"/admin/orders/order/{order.id}/change/"
