"""Every page of the admin opens, and the bare URL leads to the reference."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.words import Status

pytestmark = pytest.mark.django_db


def test_every_page_opens(admin_client):
    order = make_order(items=[{"sku": "s", "name": "Pen", "quantity": 2, "unit_amount": 100}])
    mail = make_mail(order_id=order.id, status=Status.DEAD_LETTERED, last_error="400 no")
    for name in ("order", "outboxevent", "apitoken", "heartbeat", "emailnotification"):
        app = {"order": "orders", "emailnotification": "notifications"}.get(name, "outbox")
        assert admin_client.get(reverse(f"admin:{app}_{name}_changelist")).status_code == 200
    assert b"Pen" in admin_client.get(reverse("admin:orders_order_change", args=[order.id])).content
    page = admin_client.get(reverse("admin:notifications_emailnotification_change", args=[mail.id]))
    assert b"400 no" in page.content and b"<iframe" in page.content
    assert admin_client.get("/admin/").status_code == 200


def test_the_bare_address_leads_to_the_reference():
    assert Client().get("/").headers["Location"] == "/api/docs"
