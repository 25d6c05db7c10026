"""A test of a provider in Chromium: the page refreshes itself until the webhook has spoken, or a minute."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page, expect

from local.sandbox import Sandbox, WebhookSettings
from notifications import provider_tests
from outbox import admin
from tests.kit.providers import provider
from tests.kit.words import make_key

__all__ = ["provider"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey_url")]


@pytest.fixture
def signs(settings, provider: Sandbox, live_server, monkeypatch) -> WebhookSettings:
    """Let the sandbox post a signed event two seconds after it accepted an e-mail."""
    key, settings.SENDGRID_WEBHOOK_VERIFICATION_KEY = make_key()
    settings.EMAIL_PROVIDERS, settings.ALLOWED_HOSTS = ["sendgrid"], ["*"]
    monkeypatch.setattr(admin, "TEST_REFRESH_SECONDS", 0.5)
    provider.webhooks.settings = WebhookSettings(
        url=f"{live_server.url}/webhooks", keys={"sendgrid": key}, delay=2.0
    )
    return provider.webhooks.settings


def send(page: Page) -> Any:
    page.get_by_label("To").fill("ann@example.com")
    page.get_by_role("button", name="Send a test").click()
    return page.locator("[data-state]")


def test_it_says_waiting_and_then_that_the_settings_work(open_page, signs):
    page = open_page("/admin/providers/")
    state = send(page)
    expect(state).to_have_text("waiting")
    expect(page.get_by_text("sendgrid accepted the e-mail of order.paid from")).to_be_visible()
    expect(state).to_have_text("works")
    expect(page.get_by_text("The settings of sendgrid work.")).to_be_visible()
    expect(page.locator("#refreshed")).to_have_text("Now: works")
    page.reload()
    expect(state).to_have_text("works")


def test_it_names_a_wrong_key_at_once_and_decides_at_the_end(open_page, signs, settings, monkeypatch):
    _, settings.SENDGRID_WEBHOOK_VERIFICATION_KEY = make_key()
    monkeypatch.setattr(provider_tests, "WAIT_SECONDS", 4.0)
    page = open_page("/admin/providers/", width=390)
    state = send(page)
    expect(state).to_have_text("waiting")
    expect(page.get_by_text("Check SENDGRID_WEBHOOK_VERIFICATION_KEY")).to_be_visible()
    expect(state).to_have_text("to be corrected")


def test_it_says_at_once_what_the_provider_answered(open_page, signs, settings):
    settings.ANYMAIL = settings.ANYMAIL | {"SENDGRID_API_KEY": "wrong"}
    page = open_page("/admin/providers/", dark=True)
    expect(send(page)).to_have_text("to be corrected")
    expect(page.get_by_text("Check SENDGRID_API_KEY. Sending from")).to_be_visible()
