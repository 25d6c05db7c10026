"""The login in Chromium: a passkey of its virtual authenticator, and a person of an OpenID provider."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from playwright.sync_api import Page, expect

from tests.kit.openid import OpenIdProvider, one_provider, provider

__all__ = ["one_provider", "provider"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey_url")]
PASSWORD = "right horse battery"
_AUTHENTICATOR = {
    "protocol": "ctap2",
    "transport": "internal",
    "hasResidentKey": True,
    "hasUserVerification": True,
    "isUserVerified": True,
    "automaticPresenceSimulation": True,
}


def log_in(page: Page) -> None:
    page.goto("/admin/login/")
    page.get_by_label("Username").fill("ann")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Log in", exact=True).click()


def test_a_passkey_is_set_up_at_the_first_login_and_asked_for_at_the_next(make_page, live_server, settings):
    settings.REQUIRE_MFA = True
    User.objects.create_superuser("ann", password=PASSWORD)
    page = make_page(live_server.url)
    authenticator = page.context.new_cdp_session(page)
    authenticator.send("WebAuthn.enable")
    authenticator.send("WebAuthn.addVirtualAuthenticator", {"options": _AUTHENTICATOR})
    log_in(page)
    expect(page.get_by_role("heading", name="Second factor")).to_be_visible()
    page.get_by_role("link", name="Add a passkey").click()
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.locator("#recovery-codes")).to_be_visible()
    page.get_by_role("link", name="go on").click()
    page.get_by_role("button", name="Log out").click()
    log_in(page)
    page.get_by_role("button", name="Use a passkey").click()
    expect(page.get_by_role("search")).to_be_visible()


def test_a_person_of_the_provider_comes_in_by_one_link(
    make_page, live_server, provider: OpenIdProvider, settings: Any
):
    settings.ALLOWED_HOSTS = ["*"]
    page = make_page(live_server.url)
    page.goto("/admin/login/?next=/admin/orders/order/")
    page.get_by_role("link", name="Log in with your organisation's account").click()
    expect(page).to_have_url(f"{live_server.url}/admin/orders/order/")
    expect(page.get_by_text("ann", exact=True)).to_be_visible()


def test_after_an_hour_a_refresh_says_so_and_a_search_goes_through_the_provider(
    make_page, live_server, provider: OpenIdProvider, settings: Any, console_errors: list[str]
):
    settings.ALLOWED_HOSTS = ["*"]
    page = make_page(live_server.url)
    page.goto("/admin/login/oidc/")
    data = Session.objects.get().get_decoded()
    Session.objects.update(session_data=Session.objects.encode(data | {"oidc_at": data["oidc_at"] - 3700}))
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.get_by_text("Your session must be renewed")).to_be_visible()
    page.get_by_role("search", name="Everything").get_by_role("searchbox").fill("no such order")
    page.keyboard.press("Enter")
    expect(page.get_by_text("no such order")).to_be_visible()
    assert len(provider.asked) == 2
    assert {"401" in error for error in console_errors} == {True}
    console_errors.clear()
