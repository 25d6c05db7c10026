"""Pages of the admin in a real Chromium, which must be installed, because nothing here downloads it.

`open_page` gives a page of the test's own live server, logged in. A page that logs an error, such as a
violation of the content security policy, fails its test.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.browser.clicks import count_clicks
from tests.kit.needs import reason

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
#: How many milliseconds an expectation waits at most, so that no test fails on a machine under load.
PATIENCE = 20_000


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Start Chromium once for all consecutive tests of this folder."""
    if CHROMIUM is None:
        pytest.skip(reason("chromium"))
    with pytest.MonkeyPatch.context() as patch:
        # Playwright keeps an event loop in this thread, in which Django would refuse to use the database.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        with sync_playwright() as playwright:
            # Chromium as root, as in most containers, has no sandbox. It opens only our own pages.
            started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            # `expect` does not follow a context's timeout: it has its own, of 5 seconds.
            expect.set_options(timeout=PATIENCE)
            yield started
            started.close()


@pytest.fixture
def console_errors() -> Iterator[list[str]]:
    """Collect the errors that pages log. The test fails if it leaves one."""
    errors: list[str] = []
    yield errors
    assert errors == []


@pytest.fixture
def make_page(browser: Browser, console_errors: list[str]) -> Iterator[Callable[..., Page]]:
    """Return a function that opens a page at a base URL: `make_page(url, width=, height=, dark=, client=)`.

    The page has the cookies of `client`, if one is given.
    """
    contexts = []

    def note(message: ConsoleMessage) -> None:
        # Chromium requests an icon even if the page names none.
        if message.type == "error" and not message.location.get("url", "").endswith("/favicon.ico"):
            where = message.page.url if message.page else "a closed page"
            console_errors.append(f"{message.text} ({message.location.get('url')} on {where})")

    def make(
        url: str,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        client: Client | None = None,
        zone: str = "UTC",
    ) -> Page:
        context = browser.new_context(
            base_url=url,
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce",
            timezone_id=zone,
        )
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        if client is not None:
            context.add_cookies(
                [{"name": name, "value": cookie.value, "url": url} for name, cookie in client.cookies.items()]
            )
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: console_errors.append(str(error)))
        count_clicks(page)
        return page

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def open_page(live_server: Any, make_page: Callable[..., Page]) -> Callable[..., Page]:
    """Return a function that opens a path as a superuser, or as `user`: `open_page("/admin/", dark=True)`."""

    def open_path(path: str, *, user: User | None = None, **options: Any) -> Page:
        client = Client()
        client.force_login(user or _superuser())
        page = make_page(live_server.url, client=client, **options)
        page.goto(path)
        return page

    return open_path


def _superuser() -> User:
    user = User.objects.filter(username="admin").first()
    return user or User.objects.create_superuser("admin", password="x")
