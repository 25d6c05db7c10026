"""The documentation site in Chromium, from a file system and from a plain web server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from local import docs


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return docs.build(tmp_path_factory.mktemp("docs"))


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=site))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(params=["files", "server"])
def base(request: pytest.FixtureRequest, site: Path) -> str:
    return f"file://{site}" if request.param == "files" else request.getfixturevalue("address")


def test_the_search_finds_an_alert_and_asks_no_other_server(
    base: str, make_page: Callable[..., Page]
) -> None:
    page = make_page(base)
    requests: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.goto(f"{base}/explain/guarantee.html")
    page.keyboard.press("/")
    # The box opens when the index has arrived. Keys that come before are lost.
    expect(page.get_by_role("combobox", name="Search")).to_be_focused()
    page.keyboard.type("backlog")
    hit = page.get_by_role("option", name="EmailBacklog").first
    expect(hit).to_be_visible()
    hit.click()
    page.wait_for_url("**/guides/alerts.html*#emailbacklog")
    assert len(requests) > 5
    assert [url for url in requests if not url.startswith((base, "data:", "blob:"))] == []


def test_an_address_in_an_alert_leads_to_its_paragraph(address: str, make_page: Callable[..., Page]) -> None:
    page = make_page(address)
    page.goto(f"{address}/guides/alerts.md#emailbacklog")
    page.wait_for_url("**/guides/alerts.html#emailbacklog")
    expect(page.locator("#emailbacklog")).to_be_in_viewport()


@pytest.mark.parametrize("dark", [False, True])
def test_a_picture_fits_the_mode(dark: bool, site: Path, make_page: Callable[..., Page]) -> None:
    page = make_page(f"file://{site}", dark=dark)
    page.goto(f"file://{site}/guides/admin.html")
    pictures = page.locator("article img[src*=overview]")
    assert pictures.count() == 2
    visible = [picture.get_attribute("src") for picture in pictures.all() if picture.is_visible()]
    assert [("dark" in (src or "")) for src in visible] == [dark]
