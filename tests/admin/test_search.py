"""The admin's one search box: an exact value leads straight to what it names."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from tests.kit.mails import make_mail, make_mails
from tests.kit.orders import make_order
from tests.kit.people import staff_client
from tests.kit.words import InboundDeadLetter, Order, OutboxEvent, new_id

pytestmark = pytest.mark.django_db
SEARCH = "/admin/search/"


def test_each_name_of_an_order_leads_to_it(admin_client):
    order = make_order(reference="R-77", correlation_id="checkout-1", email="Ann@example.com")
    make_order(reference="R-78", email="bob@example.com")
    for term in ("R-77", str(order.id), "checkout-1", " ann@example.com "):
        page = admin_client.get(SEARCH, {"q": term})
        assert page.url == f"/admin/orders/order/{order.id}/change/"


def test_each_name_of_an_email_leads_to_it(admin_client):
    mail = make_mail(
        provider_message_id="<m1@sendgrid>", correlation_id="saga-1", recipient_email="Ann@Example.com"
    )
    make_mail(recipient_email="bob@example.com")
    for term in ("<m1@sendgrid>", str(mail.id), "saga-1", "ann@example.com", "ANN@example.com"):
        page = admin_client.get(SEARCH, {"q": term})
        assert page.url == f"/admin/notifications/emailnotification/{mail.id}/change/"


def test_an_event_is_found_by_its_id(admin_client):
    fields = {
        "aggregate_type": "t",
        "aggregate_id": new_id(),
        "event_type": "t.v1",
        "payload": {},
        "shard": 1,
    }
    event = OutboxEvent.objects.create(**fields, sequence=1)
    page = admin_client.get(SEARCH, {"q": str(event.id)})
    assert page.url == f"/admin/outbox/outboxevent/{event.id}/change/"
    letter = InboundDeadLetter.objects.create(
        topic="t.v1", event_id=new_id(), consumer="c", envelope="{}", error="e"
    )
    page = admin_client.get(SEARCH, {"q": str(letter.event_id)})
    assert page.url == f"/admin/outbox/inbounddeadletter/{letter.id}/change/"


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


@pytest.mark.django_db(transaction=True)
def test_each_search_reads_indexes_in_few_statements(admin_client):
    make_mails(30_000, status="sent")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE email_notifications SET correlation_id = id::text, provider_message_id = 'm' || id"
        )
        cursor.execute(
            "INSERT INTO orders (id, status, version, user_id, email, name, locale, reference, items,"
            " total_amount, refunded_amount, currency, correlation_id)"
            " SELECT gen_random_uuid(), 'pending', 1, gen_random_uuid(), 'u' || n || '@x.example', '', 'en',"
            " 'R-' || n, '[]', 1, 0, 'USD', 'c' || n"
            " FROM generate_series(1, 30000) AS n"
        )
        cursor.execute("VACUUM ANALYZE email_notifications, orders")
    terms = ("User77@Example.com", "c77", str(new_id()), str(Order.objects.earliest("id").id))
    for term in terms:
        with CaptureQueriesContext(connection) as captured:
            admin_client.get(SEARCH, {"q": term})
        assert len(captured) <= 10
        for statement in (entry["sql"] for entry in captured):
            if re.match('SELECT.*FROM "(email_notifications|orders)"', statement):
                with connection.cursor() as cursor:
                    cursor.execute("EXPLAIN (ANALYZE) " + statement)
                    plan = "\n".join(row[0] for row in cursor.fetchall())
                found = re.findall(r"Seq Scan on .*actual .*rows=[1-9]", plan)
                assert not found and "Rows Removed by Filter" not in plan, plan
