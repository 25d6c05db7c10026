"""A German browser at ten past midnight: its pages have its own time, from the page of the login on."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from tests.kit.orders import make_order

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey_url")]


def test_the_login_tells_the_zone_and_lists_have_its_time_and_that_of_utc_on_hover(
    make_page: Callable[..., Page], live_server: Any
) -> None:
    User.objects.create_superuser("ann", password="a long pass phrase 4 ann")
    make_order(reference="A-1", created_at=dt.datetime(2026, 11, 28, 23, 10, tzinfo=dt.UTC))
    page = make_page(live_server.url, zone="Europe/Berlin")
    page.goto("/admin/orders/order/")
    page.get_by_label("Username").fill("ann")
    page.get_by_label("Password").fill("a long pass phrase 4 ann")
    page.get_by_role("button", name="Log in").click()
    cell = page.get_by_text("2026-11-29 00:10:00", exact=True).first
    expect(cell).to_have_attribute("title", re.compile("ago, 2026-11-28 23:10:00 UTC"))
    page.get_by_text("Date:").click()
    expect(page.get_by_text("Europe/Berlin")).to_be_visible()
