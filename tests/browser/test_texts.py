"""The sentences of an e-mail in Chromium, as a shop's owner changes them who has never seen the page."""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from notifications.models import EmailTextVersion
from tests.browser.clicks import clicks_on
from tests.kit.orders import make_order
from tests.kit.people import confirm_address
from tests.kit.profiles import save_profile
from tests.kit.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)
TEXTS = "/admin/notifications/emailtext/"
PAID = f"{TEXTS}edit/order.paid/en/"
#: The difference between the brightest and the darkest point of a picture, of at most 765, and the middle.
CONTRAST = """async (picture) => {
    const image = new Image();
    image.src = `data:image/png;base64,${picture}`;
    await image.decode();
    const size = {width: image.width, height: image.height};
    const canvas = Object.assign(document.createElement("canvas"), size);
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const data = context.getImageData(0, 0, image.width, image.height).data;
    let least = 765, most = 0, all = 0;
    for (let at = 0; at < data.length; at += 4) {
        const sum = data[at] + data[at + 1] + data[at + 2];
        least = Math.min(least, sum);
        most = Math.max(most, sum);
        all += sum;
    }
    return [most - least, all * 4 / data.length];
}"""


def expect_in_preview(page, text: str, is_so: Callable[[Any], bool] = lambda _: True) -> None:
    """Wait until a text of the preview is visible, and is so.

    The pictures make Chromium paint: it lays out a sandboxed frame only when the page around it is painted.
    """
    preview = page.locator("#preview-html")
    preview.scroll_into_view_if_needed()
    place = page.frame_locator("#preview-html").get_by_text(text)
    until(
        lambda: place.is_visible() and is_so(place),
        f"the preview shows {text!r}",
        meanwhile=lambda: preview.screenshot(),
    )


def is_readable(page, place, *, is_dark: bool) -> bool:
    """Return whether the text of a place can be read, on a dark or on a bright background."""
    picture = base64.b64encode(place.screenshot()).decode()
    difference, mean = page.evaluate(CONTRAST, picture)
    return bool(difference > 400 and (mean < 380) == is_dark)


def subject_of(page):
    """Return the sentence of the subject of an order that cost something."""
    subjects = page.locator(".sentence").filter(has=page.get_by_label("Subject"))
    return subjects.filter(has_text="Payment received for your order")


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, False), (1280, True), (390, True)], ids=str)
def test_an_editor_writes_sees_a_mistake_and_publishes(open_page, width, dark):
    make_order(reference="R-1", name="Ann")
    page = open_page(PAID, width=width, dark=dark)
    expect(page.locator("#preview-subject")).to_have_text("Payment received for your order R-1")
    expect_in_preview(page, "Hello Ann,")

    sentence = subject_of(page)
    subject = sentence.get_by_label("Subject")
    subject.fill("Thanks, {nmae}")
    mistake = page.get_by_text("{nmae} is no variable of this sentence.")
    expect(mistake).to_be_visible()
    subject.fill("Thanks for ")
    expect(mistake).to_have_count(0)  # its line goes, and what is below moves
    sentence.get_by_role("button", name="order number", exact=True).click()
    expect(subject).to_have_value("Thanks for {reference}")
    expect(page.locator("#preview-subject")).to_have_text("Thanks for R-1")

    before = page.get_by_label("Before the order's lines")
    before.fill("We **pack** it today.")
    expect_in_preview(page, "We pack it today.")
    for is_dark in (True, False):
        page.get_by_label("Dark").set_checked(is_dark)
        is_so = functools.partial(is_readable, page, is_dark=is_dark)
        expect_in_preview(page, "We pack it today.", is_so)
    page.get_by_label("Text", exact=True).check()
    expect(page.locator("#preview-text")).to_contain_text("We pack it today.")
    expect(page.locator("#preview-html")).to_be_hidden()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    place, preview = before.bounding_box(), page.locator(".beside").bounding_box()
    gap = preview["y"] - place["y"] - place["height"]
    assert width > 1100 or 0 <= gap < 200, "the preview stands at the sentence that is written"

    page.locator(".sentence", has=before).get_by_role("button", name="Undo").click()
    expect(page.locator("#preview-text")).not_to_contain_text("We pack it today.")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("Version 1 is published.")).to_be_visible()
    version = EmailTextVersion.objects.get()
    assert [entry["text"] for entry in version.sentences] == ["Thanks for {reference}"]
    assert version.published_by == "admin"


def test_an_owner_changes_a_german_sentence_of_one_shop_adds_a_paragraph_and_undoes_both(
    open_page, settings, monkeypatch
):
    settings.ORDER_SOURCES = ["tea"]
    save_profile("tea", shop_name="Tee & Mehr", default_locale="de")
    sent = []
    monkeypatch.setattr("orders.admin.previews.send_preview", lambda **values: sent.append(values) or "")
    page = open_page("/admin/")
    confirm_address(User.objects.get(), "ada@example.com")
    page.get_by_role("link", name="Texts").click()
    page.get_by_label("Shop").select_option("tea")
    page.get_by_label("Language").select_option("de")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("row", name="Payment received").get_by_role("link", name="Edit").click()
    sentence = page.locator(".sentence", has_text="Wir bereiten Ihre Bestellung nun für Sie vor.")
    sentence.get_by_role("textbox").fill("Wir packen Ihren Tee noch heute.")
    page.get_by_label("After the order's lines").fill("Bis bald!")
    page.get_by_label("Phone").check()
    mail = page.frame_locator("#preview-html")
    expect_in_preview(page, "Wir packen Ihren Tee noch heute.")
    expect(mail.get_by_text("Bis bald!")).to_be_attached()
    page.get_by_role("button", name="Send it to me").click()
    expect(page.get_by_text("Sent to ada@example.com.")).to_be_visible()
    assert "Wir packen Ihren Tee noch heute." in sent[0]["email"].body_text
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("Version 1 is published.")).to_be_visible()
    assert EmailTextVersion.objects.get().text.source == "tea"
    to_publish = clicks_on(page)
    page.get_by_role("button", name="Withdraw").click()
    expect(page.get_by_text("Withdrawn.")).to_be_visible()
    assert to_publish <= 6 and clicks_on(page) <= to_publish + 1


def test_a_newer_preview_replaces_the_one_before(open_page):
    page = open_page(PAID)
    held = []

    def answer(route) -> None:
        if not held:
            held.append(route)  # the first one is never answered
        else:
            route.continue_()

    page.route("**/preview/**", answer)
    subject_of(page).get_by_label("Subject").fill("first")
    until(lambda: held, "the preview is asked for", meanwhile=lambda: page.wait_for_timeout(50))
    subject_of(page).get_by_label("Subject").fill("second")
    expect(page.locator("#preview-subject")).to_have_text("second")


def test_leaving_with_a_text_that_is_not_saved_asks(open_page):
    page = open_page(PAID)
    asked = []

    def stay(dialog) -> None:
        asked.append(dialog.type)
        dialog.accept()

    page.on("dialog", stay)
    page.goto(TEXTS)
    assert asked == []
    page.goto(PAID)
    subject_of(page).get_by_label("Subject").press_sequentially("mine")
    page.goto(TEXTS)
    assert asked == ["beforeunload"]
    page.goto(PAID)
    subject_of(page).get_by_label("Subject").press_sequentially("mine")
    page.get_by_role("button", name="Save the draft").click()
    expect(page.get_by_text("The draft is saved.")).to_be_visible()
    assert asked == ["beforeunload"]


def test_the_preview_runs_no_script(open_page):
    page = open_page(PAID)
    page.get_by_label("Before the order's lines").fill("<script>parent.document.title = 'evil'</script>seen")
    expect_in_preview(page, "seen")
    assert "evil" not in page.title()


def test_what_was_written_comes_back_after_the_session_ended(open_page):
    page = open_page(PAID)
    cookies = page.context.cookies()
    place = page.locator("#texts textarea").first
    place.fill("Written before the session ended")
    page.context.clear_cookies(name="sessionid")
    page.get_by_role("button", name="Save the draft").click()
    page.wait_for_url("**/login/**")
    page.context.add_cookies(cookies)
    page.goto(page.url.partition("/admin/")[0] + PAID)
    expect(place).to_have_value("Written before the session ended")
    page.get_by_role("button", name="Save the draft").click()
    page.get_by_text("The draft is saved").wait_for()
    page.reload()
    expect(page.get_by_text("is here again")).to_have_count(0)
