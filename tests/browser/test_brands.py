"""The e-mails of two shops in Chromium: each has its colour and logo, at any width, light and dark."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.brands import LOGO_URL, send_two_brands, serve_logo
from tests.kit.mails import sandbox
from tests.kit.profiles import save_profile

__all__ = ["sandbox"]
pytestmark = pytest.mark.django_db(transaction=True)
WIDER = "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"


@pytest.mark.parametrize(("width", "dark"), [(1180, False), (390, False), (390, True)], ids=str)
def test_two_shops_have_two_brands(sandbox, settings, make_page, width, dark):
    settings.ORDER_SOURCES = ["coffee"]
    tea, coffee = send_two_brands(sandbox)
    page = make_page(sandbox.url, width=width, dark=dark)
    asked = serve_logo(page)

    page.goto(tea)
    head = page.locator("td", has_text="Leaf & Cup").first
    expect(head).to_have_css("background-color", "rgb(22, 101, 52)")
    expect(page.get_by_text("5 High Street, Leeds")).to_be_visible()
    assert not page.evaluate(WIDER) and asked == []

    page.goto(coffee)
    logo = page.get_by_role("img", name="Beans & Co")
    expect(logo).to_be_visible()
    assert asked == [LOGO_URL]
    expect(logo.locator("..")).to_have_css("background-color", "rgb(124, 45, 18)")
    expect(page.get_by_text("Hafenstraße 9, Hamburg")).to_be_visible()
    assert page.evaluate("() => document.documentElement.lang") == "de"
    assert not page.evaluate(WIDER)


def test_the_form_previews_what_is_not_saved_yet(open_page, settings):
    profile = save_profile("", shop_name="Before")
    page = open_page(f"/admin/notifications/mailprofile/{profile.id}/change/")
    frame = page.frame_locator("iframe[name=preview]")
    expect(frame.get_by_text("Before").first).to_be_visible()
    page.get_by_label("Shop name").fill("After")
    page.get_by_label("Colour:").fill("#7c2d12")
    page.get_by_role("button", name="Preview").click()
    expect(frame.locator("td", has_text="After").first).to_have_css("background-color", "rgb(124, 45, 18)")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("was changed successfully")).to_be_visible()
    profile.refresh_from_db()
    assert profile.shop_name == "After"


@pytest.mark.parametrize("width", [1280, 390])
def test_a_colour_is_picked_and_the_empty_one_stays_the_default(open_page, settings, width):
    settings.ORDER_SOURCES = ["coffee"]
    profile = save_profile("coffee")
    page = open_page(f"/admin/notifications/mailprofile/{profile.id}/change/", width=width)
    expect(page.get_by_label("Source")).to_have_value("coffee")
    text = page.get_by_label("Colour:")
    picker = page.get_by_label("Pick a colour")
    expect(picker).to_be_visible()
    expect(text).to_have_value("")
    expect(picker).to_have_value("#115e59")
    picker.fill("#7c2d12")
    expect(text).to_have_value("#7c2d12")
    text.fill("#166534")
    expect(picker).to_have_value("#166534")
    text.fill("")
    expect(picker).to_have_value("#115e59")
    assert not page.evaluate(WIDER)
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_text("was changed successfully")).to_be_visible()
    profile.refresh_from_db()
    assert profile.colour == ""
