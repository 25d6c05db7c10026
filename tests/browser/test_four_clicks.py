"""Four clicks from a complaint to *sent*: a typo in an address, and many dead letters of one cause."""

from __future__ import annotations

import re

import pytest
from django.core.management import call_command
from playwright.sync_api import Page, expect

from tests.browser.clicks import clicks_on
from tests.kit.acts import acts
from tests.kit.admin import MAILS, ORDERS
from tests.kit.jobs import killed_at_the_end_of, let_pass, run_jobs, small_batches
from tests.kit.mails import make_mail, make_mails, statuses
from tests.kit.orders import make_order
from tests.kit.providers import smtp
from tests.kit.words import RETRIES, BulkJob, EmailNotification, Order

pytestmark = [pytest.mark.django_db(transaction=True, databases=["default", "direct"])]
__all__ = ["smtp"]  # a fixture


@pytest.fixture(autouse=True)
def _sends_by_smtp(settings, smtp):
    settings.EMAIL_PROVIDERS = ["smtp"]
    settings.FAST_PATH = False


# A customer never got the receipt, because of a typo.


@pytest.fixture
def receipt() -> EmailNotification:
    """Return a dead letter to a misspelt address."""
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
    expect(page.locator("[data-state]")).to_have_text("sent")
    copy = EmailNotification.objects.get(resend_of=receipt.id)
    assert (copy.status, copy.recipient_email) == ("sent", "alice@example.com")
    assert Order.objects.get(id=receipt.order_id).email == "alice@example.com"


def test_a_typo_takes_at_most_four_clicks(open_page, receipt):
    page = open_page(MAILS)
    find(page)
    page.get_by_role("link", name="Send a copy to another address …").click()
    page.get_by_label("Send it to").fill("alice@example.com")
    page.get_by_role("button", name="Send the copy").click()
    page.wait_for_url("**/emailnotification/*/change/**")
    check_sent(page, receipt)
    assert clicks_on(page) <= 4


def test_a_typo_takes_no_mouse_at_all(open_page, receipt):
    page = open_page(f"{MAILS}{receipt.id}/change/", width=375)
    page.get_by_role("link", name="Send a copy to another address …").press("Enter")
    page.get_by_label("Send it to").fill("alice@example.com")
    page.get_by_label("Send it to").press("Enter")
    page.wait_for_url("**/emailnotification/*/change/**")
    check_sent(page, receipt)
    assert clicks_on(page) == 0


def test_the_order_tells_of_the_dead_letter(open_page, receipt):
    page = open_page(f"{ORDERS}{receipt.order_id}/change/")
    expect(page.locator(".timeline")).to_contain_text("dead lettered: 550 no such domain")
    page.get_by_role("link", name="Preview its e-mails …").click()
    expect(page.locator(".mail-text")).to_contain_text("A-1001")
    page.get_by_label("Phone").check()
    assert page.locator("iframe.preview").bounding_box()["width"] < 400


# A provider refused many e-mails for one cause.
ERROR = "550 5.7.1 Client host [192.0.2.1] blocked using a block list"


@pytest.fixture
def blocked():
    """Make dead letters of one cause; jobs run when the test says so."""
    make_mails(25, status="dead_lettered")
    EmailNotification.objects.dead().update(provider="smtp", last_error=ERROR)
    with small_batches(rows=10):
        yield


def test_all_of_one_cause_take_at_most_four_clicks_with_progress_and_a_kill(open_page, blocked):
    page = open_page("/admin/")
    page.get_by_role("link", name="blocks our provider").click()
    page.get_by_role("button", name="Resend all 25").click()
    expect(page.locator("#content")).to_contain_text("25 dead lettered: will be sent again")
    page.get_by_role("button", name="Yes, resend").click()
    expect(page.locator("#job [data-count=left]")).to_have_text("25")
    with killed_at_the_end_of(batch=2):
        run_jobs()
    expect(page.locator("#job [data-count=done]")).to_have_text("10")  # by job.js
    assert page.locator("#job-bar").get_attribute("value") or page.locator("#job-bar").input_value()
    let_pass(BulkJob.objects.get(), seconds=RETRIES.base_seconds)
    call_command("drain_outbox")  # goes on with the job, and sends
    expect(page.locator("#job .pill")).to_have_text("done")  # job.js has loaded the page anew
    assert statuses() == {"sent": 25}
    assert acts().values("subject_id").distinct().count() == acts().count() == 25
    assert clicks_on(page) <= 4


def test_a_running_job_is_stopped_by_its_button(open_page, blocked):
    page = open_page(f"{MAILS}causes/", width=375, dark=True)
    page.get_by_role("button", name="Give up all 25").press("Enter")
    page.get_by_role("button", name="Yes, give up").press("Enter")
    page.get_by_role("button", name="Stop").press("Enter")
    expect(page.locator(".messagelist")).to_contain_text("Stopped.")
    run_jobs()
    assert statuses() == {"dead_lettered": 25}
    assert BulkJob.objects.get().state == "stopped"


def test_the_box_of_every_page_leads_to_an_email(open_page, blocked):
    mail = EmailNotification.objects.earliest("id")
    page = open_page("/admin/")
    page.keyboard.press("/")
    page.keyboard.type(str(mail.id))
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/emailnotification/{mail.id}/change/")
    assert clicks_on(page) == 0


def test_a_list_is_narrowed_to_two_dates(open_page, blocked):
    page = open_page(f"{MAILS}?status=dead_lettered")
    page.get_by_text("Date:").click()
    page.get_by_label("To the end of").fill("2020-01-01")
    page.locator("form.period button").click()
    expect(page.locator("#result_list")).to_have_count(0)
    assert "status=dead_lettered" in page.url


def test_the_keyboard_alone_resends_an_email_whose_page_tells_when_it_is_sent(open_page, smtp):
    mail = make_mail(order_id=make_order().id, status="dead_lettered", last_error="550 5.7.1 blocked")
    page = open_page(f"{MAILS}{mail.id}/change/", width=390)
    page.keyboard.press("r")
    expect(page.locator("#resend")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist")).to_contain_text("“Your order” to alice@example.com is sent again.")
    expect(page.locator("[data-state]")).to_have_text("pending")
    call_command("drain_outbox")
    expect(page.locator("[data-state]")).to_have_text("sent")  # the page refreshes itself
    expect(page.locator("#refreshed")).to_have_text("Now: sent")
    expect(page.locator("[data-waits]")).to_have_count(0)
    assert clicks_on(page) == 0 and not BulkJob.objects.exists()


def test_an_order_resends_its_email_in_one_click_and_corrects_its_address(open_page, receipt):
    page = open_page(f"{ORDERS}{receipt.order_id}/change/")
    page.get_by_role("link", name="Correct the address …").click()
    page.get_by_label("New address").fill("alice@example.com")
    expect(page.get_by_label("Send a copy of the last e-mail")).to_be_checked()
    page.get_by_role("button", name="Correct the address").click()
    expect(page.locator(".messagelist")).to_contain_text("The address is corrected. A copy is on its way.")
    call_command("drain_outbox")
    copy = EmailNotification.objects.get(resend_of=receipt.id)
    assert (copy.status, copy.recipient_email) == ("sent", "alice@example.com")
    page.get_by_role("button", name="Resend “Your order” to alice@exampel.com").click()
    expect(page.locator(".messagelist")).to_contain_text("is sent again.")
    expect(page).to_have_url(re.compile(f"/order/{receipt.order_id}/change/$"))
    assert clicks_on(page) == 3


# A customer asks where an e-mail is.


@pytest.mark.parametrize("words", ["lena", "l-1", "#L-1"])
def test_an_email_is_found_explained_and_resent_in_three_clicks(open_page, words):
    order = make_order(email="lena@example.com", reference="L-1")
    make_mail(
        order_id=order.id,
        recipient_email="lena@example.com",
        subject="Payment received",
        status="dead_lettered",
        provider="smtp",
        last_error="552 5.2.2 mailbox full",
    )
    make_mails(30, status="sent")
    page = open_page("/admin/")
    page.get_by_role("link", name="E-mails", exact=True).first.click()
    page.locator("#searchbar").fill(words)
    page.keyboard.press("Enter")
    page.wait_for_url("**q=*")
    row = page.locator("#result_list tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("L-1")
    row.get_by_role("link").first.click()
    expect(page.locator("#content")).to_contain_text("mailbox is full")
    page.get_by_role("button", name="Resend", exact=True).click()
    expect(page.locator("[data-state]")).to_have_text("pending")
    call_command("drain_outbox")
    expect(page.locator("[data-state]")).to_have_text("sent")  # the page refreshes itself
    assert clicks_on(page) <= 3


def test_the_address_of_an_order_without_an_email_is_corrected_in_four_clicks(open_page):
    order = make_order(email="lena@exampel.com", reference="L-1")
    page = open_page("/admin/")
    page.get_by_role("link", name="Orders", exact=True).first.click()
    page.locator("#searchbar").fill("#l-1")
    page.keyboard.press("Enter")
    page.locator("#result_list tbody a").first.click()
    page.get_by_role("link", name="Correct the address …").click()
    page.get_by_role("textbox", name="address").first.fill("lena@example.com")
    page.get_by_role("button", name="Correct the address").click()
    page.wait_for_url("**/orders/order/*/change/**")
    order.refresh_from_db()
    assert order.email == "lena@example.com"
    assert clicks_on(page) <= 4
