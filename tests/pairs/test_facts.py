"""What other systems report, with values that cannot be used, and what else meets these orders."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

from notifications.failure_causes import dead_causes
from notifications.providers.causes import explain_email
from tests.kit.api import Api, assert_problem, make_token
from tests.kit.events import SHOP, emails, handle, new_id, received, tell, told, without_address
from tests.kit.mails import drained, rendered_again
from tests.kit.people import ANN, BOB
from tests.kit.profiles import save_profile
from tests.kit.words import (
    DomainEvent,
    EmailNotification,
    Order,
    Suppression,
    address_hash,
    claim,
    order_services,
    send_copy,
)
from tests.kit.words import mail_services as services

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"]),
    pytest.mark.usefixtures("archive_folder"),
]
URL = "/api/v1/events"
WRONG = "a..b@docomo.ne.jp"
OTHER_USER = "9f2b7c9e-4b0d-4c55-9b57-0d5a2f6c1e11"
COPIES = "/admin/orders/order/copies"
DEAD = ("dead_lettered", "")


@pytest.fixture(autouse=True)
def _sources(settings: Any) -> None:
    settings.ORDER_SOURCES = [SHOP, "shop-b"]
    settings.NOTIFY_ON = ["order.placed", "order.paid", "order.completed"]
    settings.FAST_PATH = False


class TestALaterAddress:
    def test_makes_the_emails_due_with_it(self):
        order = without_address(2)
        assert emails(order) == {"order.placed": DEAD, "order.paid": DEAD}
        assert tell("completed", str(order.id), 3, email=ANN, name="Ann Example") == "done"
        assert set(emails(order).values()) == {("pending", ANN)} and len(emails(order)) == 3
        assert {mail.recipient_email for mail in claim(limit=5)} == {ANN}
        rows = EmailNotification.objects.values_list("to_name", "last_error")
        assert set(rows) == {("Ann Example", "")}

    def test_of_an_overtaken_event_makes_nothing_due(self):
        id = new_id()
        tell("completed", id, 3, email=WRONG)
        tell("paid", id, 2, email=ANN)
        order = Order.objects.get(id=id)
        assert order.email == "" and set(emails(order).values()) == {DEAD}

    def test_that_is_empty_again_is_visible_and_the_next_one_makes_it_due(self):
        order = without_address(1)
        tell("paid", str(order.id), 2, email=ANN)
        tell("completed", str(order.id), 3, email="")
        order.refresh_from_db()
        assert order.email == "" and emails(order)["order.completed"] == DEAD
        tell("completed", str(order.id), 4, email=BOB, notify=False)
        assert emails(order) == {
            **dict.fromkeys(["order.placed", "order.paid"], ("pending", ANN)),
            "order.completed": ("pending", BOB),
        }

    def test_leaves_what_a_person_gave_up(self):
        order = without_address(1)
        services.give_up(ids=EmailNotification.objects.values_list("id", flat=True))
        tell("paid", str(order.id), 2, email=ANN)
        assert emails(order) == {"order.placed": ("discarded", ""), "order.paid": ("pending", ANN)}

    def test_is_published_with_the_dead_letter_before_it(self, settings):
        settings.EMAIL_EVENTS = True
        order = without_address(1)
        event = DomainEvent.objects.get()
        assert (event.event_type, event.sequence) == ("notification.email.dead_lettered.v1", 0)
        assert event.payload["orderId"] == str(order.id)

    def test_reaches_a_suppressed_person_no_more_than_any_other(self):
        order = without_address(1)
        Suppression.objects.create(address_hash=address_hash(ANN), reason="hard_bounce")
        tell("paid", str(order.id), 2, email=ANN)
        assert set(emails(order).values()) == {("pending", ANN)}
        drained()
        assert set(emails(order).values()) == {("suppressed", ANN)}


class TestACorrection:
    def test_of_an_empty_address_by_api_makes_the_others_due_and_lasts(self):
        order = without_address(2)
        api = Api(make_token(source=SHOP))
        mail = EmailNotification.objects.get(event_type="order.paid")
        body = {"recipient_email": ANN, "update_order": True}
        answer = api.post(f"/api/v1/notifications/{mail.id}/copies", body)
        assert (answer.status_code, answer.json()["recipient_email"]) == (201, ANN)
        assert emails(order) == {"order.placed": ("pending", ANN), "order.paid": DEAD}
        assert Order.objects.get(id=order.id).email == ANN
        tell("completed", str(order.id), 3, email=WRONG)  # the shop does not know better yet
        assert Order.objects.get(id=order.id).email == ANN
        assert emails(order)["order.completed"] == ("pending", ANN)
        tell("completed", str(order.id), 4, email=BOB)
        assert Order.objects.get(id=order.id).email == BOB
        shown = api.get(f"/api/v1/orders/{order.id}/timeline").json()["results"]
        assert "email: A person gave the order an address." in [entry["text"] for entry in shown]

    def test_of_an_empty_address_in_the_admin(self, admin_client):
        order = without_address(1)
        mail = EmailNotification.objects.get()
        page = f"{COPIES}/{mail.id}/"
        assert b"update_order" in admin_client.get(page).content
        assert admin_client.post(page, {"recipient_email": ANN, "update_order": "on"}).status_code == 302
        assert Order.objects.get(id=order.id).email == ANN
        assert b"update_order" not in admin_client.get(page).content
        copy = EmailNotification.objects.get(resend_of=mail.id)
        assert (copy.status, copy.recipient_email) == ("pending", ANN)

    def test_outlasts_any_number_of_warnings(self):
        order = without_address(1)
        with transaction.atomic():
            order_services.correct_address(order_id=order.id, email=ANN).save()
        for sequence in range(2, 152):
            tell("completed", str(order.id), sequence, email=WRONG)
        assert Order.objects.get(id=order.id).email == ANN

    def test_of_an_address_is_the_shops(self):
        id = new_id()
        tell("paid", id, 1)
        mail = EmailNotification.objects.get()
        EmailNotification.objects.update(status="discarded", ended_by="person")
        body = {"recipient_email": BOB, "update_order": True}
        answer = Api(make_token()).post(f"/api/v1/notifications/{mail.id}/copies", body)
        assert "shop-a owns the order" in assert_problem(answer, 409, "not-copyable")["detail"]


class TestNothingUnusableReachesAHeader:
    @pytest.mark.parametrize("stored", ["", WRONG, "a@b@c", "ann@example.com\r\nBcc: x@example.com"])
    def test_a_resend_checks_the_address_again(self, stored):
        without_address(1)
        EmailNotification.objects.update(recipient_email=stored)
        mail = EmailNotification.objects.get()
        changes, (refusal,) = services.resend(ids=[mail.id])
        assert changes == [] and "no usable address" in refusal.reason
        problem = assert_problem(
            Api(make_token()).post(f"/api/v1/notifications/{mail.id}/resend"), 409, "not-resendable"
        )
        assert "no usable address" in problem["detail"]
        answer = Api(make_token()).post(f"/api/v1/notifications/{mail.id}/copies", {})
        assert "no usable address" in assert_problem(answer, 409, "not-copyable")["detail"]
        assert EmailNotification.objects.count() == 1 and claim(limit=1) == []

    def test_a_command_that_resends_all_leaves_it(self):
        without_address(2)
        event = told("paid", new_id(), 1)
        topic = "notification.command.resend_error_emails.v1"
        assert handle(received(topic, event | {"eventType": topic, "data": {}})) == "done"
        assert set(EmailNotification.objects.values_list("status", flat=True)) == {"dead_lettered"}

    def test_it_is_not_rendered_again_before_its_order_has_an_address(self):
        without_address(2)
        placed, paid = EmailNotification.objects.order_by("id")
        assert rendered_again(placed, paid) == ([], ["its order has no usable address"] * 2)
        send_copy(notification_id=paid.id, recipient_email=ANN, update_order=True)
        (copy,), refusals = rendered_again(paid)
        assert (copy.recipient_email, copy.status, refusals) == (ANN, "pending", [])
        EmailNotification.objects.filter(id=placed.id).update(status="failed")
        (copy,), refusals = rendered_again(placed)
        assert (copy.recipient_email, refusals) == (ANN, [])

    def test_its_cause_is_explained_and_every_page_shows_it(self, admin_client):
        order = without_address(2)
        (cause,) = dead_causes()
        assert cause.count == 2
        mail = EmailNotification.objects.first()
        title = explain_email(provider="", ended_by=mail.ended_by, error=mail.last_error).title
        assert title == "The order has no usable address"
        for page in (
            *(f"/admin/orders/order/{order.id}/change/", "/admin/orders/order/"),
            *("/admin/notifications/emailnotification/", f"{COPIES}/{mail.id}/"),
            f"/admin/notifications/emailnotification/{mail.id}/change/",
            *("/admin/notifications/emailnotification/causes/", "/admin/"),
        ):
            assert admin_client.get(page).status_code == 200, page
        api = Api(make_token())
        for path in (f"orders/{order.id}", f"notifications/{mail.id}", f"orders/{order.id}/timeline"):
            assert api.get(f"/api/v1/{path}").status_code == 200


class TestAShopCopy:
    def test_is_sent_although_the_customer_has_no_address(self):
        save_profile(SHOP, copy_to="office@shop.example")
        order = without_address(1)
        copy = EmailNotification.objects.exclude(shop_copy_of=None).get()
        assert (copy.status, copy.recipient_email, copy.last_error) == ("pending", "office@shop.example", "")
        assert emails(order) == {"order.placed": DEAD}
