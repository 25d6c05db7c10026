"""The e-mails of each shop have its sender and look, and with `copy_to` the shop gets its copy."""

from __future__ import annotations

import uuid

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from notifications.content.profiles import find_profile
from orders.privacy.persons import platform_emails
from runtime.process import cached_rows
from tests.kit.mails import make_mail
from tests.kit.orders import cancel_order, pay_order, place_order
from tests.kit.plans import rows_without_index
from tests.kit.profiles import save_profile
from tests.kit.words import SAMPLE, EmailNotification, Order, render_email

pytestmark = pytest.mark.django_db


def placed(**values: object) -> Order:
    defaults = {"user_id": uuid.uuid4(), "email": "alice@example.com", "total_amount": 100}
    return place_order(**defaults | values)


class TestAnEmail:
    def test_has_the_sender_and_the_footer_of_its_shop(self):
        save_profile("", reply_to="help@own.test", from_email="Own <orders@own.test>", shop_name="Our own")
        order = placed()
        pay_order(order_id=order.id)
        mail = EmailNotification.objects.get()
        assert (mail.profile, mail.from_email, mail.reply_to) == (
            "",
            "Own <orders@own.test>",
            "help@own.test",
        )
        assert "Our own" in mail.body_text and "Our own" in mail.body

    def test_has_the_settings_without_a_profile(self, settings):
        settings.DEFAULT_FROM_EMAIL, settings.REPLY_TO_EMAIL = "Shop <a@shop.test>", "help@shop.test"
        pay_order(order_id=placed().id)
        mail = EmailNotification.objects.get()
        assert (mail.profile, mail.from_email, mail.reply_to) == ("", "Shop <a@shop.test>", "help@shop.test")

    @pytest.mark.parametrize("event_type", ["order.paid", "order.completed", "order.shipped"])
    def test_shows_the_colour_and_the_logo_with_the_name_as_its_text(self, event_type):
        save_profile("shop-a", colour="#7c2d12", logo_url="https://shop-a.test/logo.png")
        profile = find_profile("shop-a")
        mail = render_email(event_type=event_type, locale="en", context=SAMPLE, profile=profile)
        assert 'bgcolor="#7c2d12"' in mail.body_html and "#115e59" not in mail.body_html
        assert 'src="https://shop-a.test/logo.png" alt="The shop-a"' in mail.body_html

    def test_has_the_locale_of_the_profile_if_the_shop_gave_none(self):
        save_profile("", default_locale="de")
        assert placed().locale == "de"
        assert placed(locale="fr").locale == "fr"


class TestTheRows:
    def test_are_read_again_when_they_changed_and_not_otherwise(self):
        save_profile("shop-a", shop_name="First")
        with CaptureQueriesContext(connection) as unchanged:
            cached_rows.refresh()
        assert len(unchanged) == 1
        save_profile("shop-a", shop_name="Second")
        assert find_profile("shop-a").shop_name == "Second"

    def test_stay_when_they_cannot_be_loaded(self, monkeypatch):
        save_profile("shop-a", shop_name="First")
        (rows,) = (cached for cached in cached_rows.CACHED if cached.get().get("shop-a"))
        monkeypatch.setattr(rows, "load", lambda: 1 / 0)
        save_profile("shop-a", shop_name="Second")
        assert find_profile("shop-a").shop_name == "First"

    def test_are_forgotten_when_they_are_deleted(self):
        save_profile("shop-a").delete()
        cached_rows.refresh()
        assert find_profile("shop-a").source == ""

    def test_cost_an_email_no_statement(self):
        save_profile("", colour="#7c2d12")
        order = placed()
        with CaptureQueriesContext(connection) as captured:
            pay_order(order_id=order.id)
        with_profile = len(captured)
        cached_rows.CACHED[0].value = {}
        order = placed()
        with CaptureQueriesContext(connection) as captured:
            pay_order(order_id=order.id)
        assert with_profile == len(captured)


class TestAShopCopy:
    def copies(self) -> tuple[EmailNotification, EmailNotification]:
        (mail,) = EmailNotification.objects.filter(shop_copy_of=None)
        (copy,) = EmailNotification.objects.exclude(shop_copy_of=None)
        return mail, copy

    def test_is_a_row_of_its_own_that_the_same_statement_writes(self):
        save_profile("", copy_to="office@own.test")
        order = placed(name="Alice")
        with CaptureQueriesContext(connection) as captured:
            pay_order(order_id=order.id)
        assert sum("INSERT INTO email_notifications" in query["sql"] for query in captured) == 1
        mail, copy = self.copies()
        assert (copy.shop_copy_of, copy.resend_of, copy.recipient_email) == (mail.id, None, "office@own.test")
        assert mail.id < copy.id, "lists show the customer's e-mail first"
        assert (copy.customer_email, copy.to_name) == ("alice@example.com", "")
        for name in ("subject", "body", "body_text", "from_email", "status", "order_id", "event_type"):
            assert getattr(copy, name) == getattr(mail, name), name
        assert copy.idempotency_key == f"{mail.idempotency_key}:shop"
        assert (mail.customer_email, mail.recipient_email) == ("", "alice@example.com")

    def test_is_not_written_without_copy_to(self):
        save_profile("")
        pay_order(order_id=placed().id)
        assert EmailNotification.objects.count() == 1

    def test_of_an_erased_customer_is_not_written(self):
        save_profile("", copy_to="office@own.test")
        order = placed(email="erased@privacy.invalid")
        cancel_order(order_id=order.id)
        assert EmailNotification.objects.get().status == "suppressed"


def test_a_persons_emails_and_shop_copies_are_found_by_indexes(filled):
    with CaptureQueriesContext(connection) as captured:
        list(platform_emails("User7@example.com"))
    assert captured.captured_queries
    for query in captured:
        assert rows_without_index(query["sql"]) == {}


def test_a_message_has_the_sender_and_the_reply_to_of_its_row(settings):
    from notifications.providers.base import build_message

    settings.DEFAULT_FROM_EMAIL, settings.REPLY_TO_EMAIL = "Shop <a@shop.test>", "help@shop.test"
    mail = make_mail(from_email="b@other.test")
    message = build_message(mail, None)
    assert (message.from_email, message.reply_to) == ("b@other.test", [])
    assert message.extra_headers["Message-ID"] == f"<{mail.id}@other.test>"
