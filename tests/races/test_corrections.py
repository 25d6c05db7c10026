"""Changes of an order that keep its version, and a payment that began before they committed.

The version alone does not tell that the row is another one: what a change read must be what it changes.
"""

from __future__ import annotations

import threading

import pytest
from django.db import connections, transaction

from tests.kit.api import Api, make_token
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.races import wait_until_somebody_waits
from tests.kit.words import EmailNotification, Order, confirm_order, send_copy

pytestmark = pytest.mark.django_db(transaction=True)


def pay_behind(order, change):
    """Ask for the payment while `change` is uncommitted, and commit once the payment waits for the row."""
    api, answers = Api(make_token()), []

    def pay():
        try:
            answers.append(api.post(f"/api/v1/orders/{order.id}/pay", key="pay-1"))
        finally:
            connections.close_all()

    thread = threading.Thread(target=pay)
    with transaction.atomic():
        change()
        thread.start()
        wait_until_somebody_waits()
    thread.join(30)
    (answer,) = answers
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_a_payment_that_waited_for_a_corrected_address_mails_the_new_one():
    order = make_order(email="alice@exampel.com")
    mail = make_mail(status="dead_lettered", order_id=order.id)
    corrected = "alice@example.com"
    shown = pay_behind(
        order, lambda: send_copy(notification_id=mail.id, recipient_email=corrected, update_order=True)
    )
    paid = EmailNotification.objects.get(
        order_id=order.id, event_type="order.paid", resend_of=None, status="pending"
    )
    assert (shown["email"], paid.recipient_email) == (corrected, corrected)
    assert Order.objects.get(id=order.id).email == corrected


def test_a_payment_that_waited_for_reserved_stock_confirms_the_order():
    order = make_order()
    shown = pay_behind(order, lambda: confirm_order(order_id=order.id))
    assert (shown["status"], shown["version"]) == ("confirmed", 3)
