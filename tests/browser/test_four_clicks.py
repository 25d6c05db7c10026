"""A customer never got the receipt, because of a typo: from the search box to *sent*, by mouse and by key."""

from __future__ import annotations

import pytest
from django.core.management import call_command
from playwright.sync_api import Page, expect

from tests.browser.clicks import clicks_on
from tests.kit.mails import make_mail
from tests.kit.orders import make_order
from tests.kit.words import EmailNotification, Order
from tests.providers.conftest import smtp

pytestmark = [pytest.mark.django_db(transaction=True, databases=["default", "direct"])]
__all__ = ["smtp"]  # a fixture


@pytest.fixture
def receipt(settings, smtp) -> EmailNotification:
    """Return a dead letter to a misspelt address."""
    settings.EMAIL_PROVIDERS = ["smtp"]
    settings.FAST_PATH = False
    order = make_order(email="alice@exampel.com", reference="A-1001")
    return make_mail(
        order_id=order.id,
        recipient_email="alice@exampel.com",
        status="dead_lettered",
        last_error="550 no such domain",
    )


def find(page: Page) -> None:
    page.locator("#searchbar").fill("alice@exampel.com")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=alice*")
    page.locator("#result_list tbody a").first.click()
    page.wait_for_url("**/change/**")


def check_sent(page: Page, receipt: EmailNotification) -> None:
    call_command("drain_outbox")
    page.reload()
    expect(page.locator(".field-state")).to_contain_text("sent")
    copy = EmailNotification.objects.get(resend_of=receipt.id)
    assert (copy.status, copy.recipient_email) == ("sent", "alice@example.com")
    assert Order.objects.get(id=receipt.order_id).email == "alice@example.com"


def test_it_takes_at_most_four_clicks(open_page, receipt):
    page = open_page("/admin/notifications/emailnotification/")
    find(page)
    page.get_by_role("link", name="Send a copy …").click()
    page.get_by_label("Send it to").fill("alice@example.com")
    page.get_by_role("button", name="Send the copy").click()
    page.wait_for_url("**/emailnotification/*/change/**")
    check_sent(page, receipt)
    assert clicks_on(page) <= 4


def test_it_takes_no_mouse_at_all(open_page, receipt):
    page = open_page(f"/admin/notifications/emailnotification/{receipt.id}/change/", width=375)
    page.get_by_role("link", name="Send a copy …").press("Enter")
    page.get_by_label("Send it to").fill("alice@example.com")
    page.get_by_label("Send it to").press("Enter")
    page.wait_for_url("**/emailnotification/*/change/**")
    check_sent(page, receipt)
    assert clicks_on(page) == 0


def test_the_order_tells_it(open_page, receipt):
    page = open_page(f"/admin/orders/order/{receipt.order_id}/change/")
    expect(page.locator(".timeline")).to_contain_text("dead lettered: 550 no such domain")
    page.get_by_role("link", name="Preview its e-mails …").click()
    expect(page.locator(".mail-text")).to_contain_text("A-1001")
    page.get_by_label("Phone").check()
    assert page.locator("iframe.preview").bounding_box()["width"] < 400
