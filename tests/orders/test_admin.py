"""The admin of orders: a customer's data is exported and erased."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.db.models.functions import Now
from django.test import Client

from orders.models import Order
from outbox.delivery.rows.outcomes import Status
from outbox.privacy import address_hash
from tests.factories import make_mail, make_order, staff_client

pytestmark = pytest.mark.django_db


ORDERS = "/admin/orders/order/"
PERSON = f"hash:{address_hash('alice@example.com')}"


def ask(client: Client, action: str, *orders, **fields):
    data = {"action": action, "_selected_action": [str(order.id) for order in orders]} | fields
    return client.post(ORDERS, data, follow=True)


@pytest.mark.django_db(databases=["default", "direct", "owner"])
class TestAPersonsData:
    def test_is_exported_as_a_file(self, admin_client):
        order = make_order(status="completed")
        make_mail(order_id=order.id, status=Status.SENT)
        answer = ask(admin_client, "export_person", order)
        assert answer["Content-Disposition"].startswith("attachment")
        document = answer.json()
        assert document["orders"][0]["id"] == str(order.id) and len(document["email_notifications"]) == 1

    def test_is_erased_after_a_question_and_logged_without_the_address(self, admin_client):
        order = make_order(status="completed")
        page = ask(admin_client, "erase_person", order)
        assert b"cannot be undone" in page.content
        order.refresh_from_db()
        assert order.email == "alice@example.com"
        page = ask(admin_client, "erase_person", order, confirmed="yes")
        order.refresh_from_db()
        assert order.email == "erased@privacy.invalid" and b"Erased: 1 in orders" in page.content
        entry = LogEntry.objects.get()
        assert "alice" not in f"{entry.change_message} {entry.object_repr}"
        assert f"person={PERSON} force=off rows=orders:1" in entry.change_message

    def test_writes_a_row_with_ids_and_a_hash_for_each_attempt(self, admin_client):
        order = make_order(status="paid", paid_at=Now(), reference="Alice Smith's pens")
        ask(admin_client, "export_person", order)
        ask(admin_client, "erase_person", order, confirmed="yes")
        rows = LogEntry.objects.order_by("id")
        assert {(row.object_id, row.object_repr) for row in rows} == {(str(order.id), f"Order {order.id}")}
        exported, refused = (row.get_change_message() for row in rows)
        assert exported == f"Exported the customer's data. person={PERSON} left_out=0"
        assert refused.endswith(f"not all of it. person={PERSON} reason=InFlight force=off")

    def test_is_counted_before_it_is_erased(self, admin_client):
        order, other = make_order(status="completed"), make_order(status="completed", email="bob@example.com")
        for address in ("alice@example.com", "Alice@Example.com", "carl@example.com"):
            make_mail(order_id=order.id, status=Status.SENT, recipient_email=address)
        make_mail(order_id=other.id, status=Status.SENT, recipient_email="ALICE@example.com")
        make_mail(order_id=other.id, status=Status.SENT, recipient_email="bob@example.com")
        text = " ".join(ask(admin_client, "erase_person", order).content.decode().split())
        assert "<b>1 order</b> with this address" in text
        assert "<b>3 e-mails</b> to this address" in text and "1 of them is about orders" in text
        assert "<b>1 e-mail</b> about these orders went to other addresses" in text

    def test_in_flight_is_refused_unless_forced(self, admin_client):
        order = make_order(status="paid", paid_at=Now())
        page = ask(admin_client, "erase_person", order, confirmed="yes")
        assert b"not finished" in page.content
        ask(admin_client, "erase_person", order, confirmed="yes", force="yes")
        order.refresh_from_db()
        assert order.email == "erased@privacy.invalid"

    def test_of_two_customers_at_once_is_refused(self, admin_client):
        orders = make_order(status="completed"), make_order(status="completed", email="bob@example.com")
        for action in ("export_person", "erase_person"):
            assert b"orders of one customer" in ask(admin_client, action, *orders, confirmed="yes").content
        assert {order.email for order in Order.objects.all()} == {"alice@example.com", "bob@example.com"}

    def test_needs_its_own_permission(self):
        order = make_order(status="completed")
        client = staff_client("view_order", "export_person")
        assert "Content-Disposition" in ask(client, "export_person", order).headers
        ask(client, "erase_person", order, confirmed="yes")
        order.refresh_from_db()
        assert order.email == "alice@example.com"
