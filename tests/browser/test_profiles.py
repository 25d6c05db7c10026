"""The page of a profile in Chromium: the preview stands beside the form and follows it."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.kit.profiles import save_profile

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_preview_with_an_invalid_field_says_so(open_page):
    profile = save_profile("", shop_name="Beans")
    page = open_page(f"/admin/notifications/mailprofile/{profile.id}/change/")
    page.locator("#id_from_email").fill("nobody")
    page.locator("iframe.preview").scroll_into_view_if_needed()
    shown = page.frame_locator("iframe.preview")
    expect(shown.get_by_text("No preview: correct these fields first.")).to_be_attached()
    expect(shown.get_by_text("This is not an e-mail address")).to_be_attached()
    form, preview = (page.locator(place).bounding_box() for place in ("#id_shop_name", "iframe.preview"))
    assert preview["x"] > form["x"] + form["width"]
