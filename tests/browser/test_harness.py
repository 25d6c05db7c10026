"""The browser of these tests: it is logged in, it counts clicks, and it notices errors."""

from __future__ import annotations

import pytest

from tests.browser.clicks import clicks_on

pytestmark = pytest.mark.django_db(transaction=True)


def test_it_opens_a_page_logged_in_and_counts_the_clicks_of_the_mouse(open_page):
    page = open_page("/admin/outbox/heartbeat/")
    assert page.locator("#user-tools").count() == 1
    page.get_by_role("link", name="Home").click()
    page.wait_for_url("**/admin/")
    page.go_back()
    page.get_by_role("link", name="Home").press("Enter")
    page.wait_for_url("**/admin/")
    assert clicks_on(page) == 1


def test_an_error_in_the_console_is_noticed(open_page, console_errors):
    page = open_page("/admin/outbox/heartbeat/")
    page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'x = 1'}))")
    page.wait_for_function("true")
    assert any("Content Security Policy" in text for text in console_errors)
    console_errors.clear()
