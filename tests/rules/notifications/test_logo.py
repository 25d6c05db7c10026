"""A profile's logo is fetched by the rules for shops' addresses, and judged by what it is."""

from __future__ import annotations

from typing import Any

import pytest

from notifications import logo
from notifications.logo import BadLogo, LogoNotChecked, check_logo
from tests.kit.http import serve

PNG, GIF, JPEG = b"\x89PNG\r\n\x1a\n rest", b"GIF89a rest", b"\xff\xd8\xff\xe0 rest"


@pytest.fixture(autouse=True)
def _private(settings: Any) -> None:
    settings.CONNECTIONS_PRIVATE = True  # the server of these tests


def check(status: int, body: bytes, **headers: str) -> None:
    """Check a logo whose server answers so, hangs up for 0, and has a PNG at another path."""

    def answer(path: str, *_: Any) -> tuple[int, Any, dict[str, str]]:
        if not status:
            raise ConnectionError
        return (200, PNG, {}) if path == "/moved.png" else (status, body, headers)

    with serve(answer) as address:
        check_logo(f"{address}/logo")


@pytest.mark.parametrize("body", [PNG, GIF, b"GIF87a rest", JPEG, PNG + b"x" * (1_000_000 - len(PNG))])
def test_an_image_is_right_whatever_its_server_calls_it(body):
    check(200, body, **{"Content-Type": "text/html"})


def test_a_redirect_on_its_host_is_followed():
    check(301, b"", Location="/moved.png")


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"", "not a PNG, JPEG or GIF"),
        (200, b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a PNG, JPEG or GIF"),
        (200, b"RIFF\x00\x00\x00\x00WEBPVP8 ", "not a PNG, JPEG or GIF"),
        (200, b"<html>", "not a PNG, JPEG or GIF"),
        (200, PNG + b"x" * 1_000_000, "more than 1,000,000 bytes"),
        (404, PNG, "status 404"),
        (410, PNG, "status 410"),
    ],
)
def test_what_customers_would_not_see_is_wrong(status, body, said):
    with pytest.raises(BadLogo, match=said):
        check(status, body)


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [
        (403, {}, "The logo's server answered with status 403"),
        (503, {}, "The logo's server answered with status 503"),
        (302, {"Location": "https://other.example/logo.png"}, "redirects to other.example"),
        (0, {}, "connection to the logo's server failed"),
    ],
)
def test_what_could_not_be_fetched_may_be_right(status, headers, said):
    with pytest.raises(LogoNotChecked, match=said):
        check(status, b"", **headers)


def test_a_slow_server_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(logo, "MOST_SECONDS", -1.0)  # it may have been asked by then
    with pytest.raises(LogoNotChecked, match="took longer than 0 s"):
        check(200, PNG)


def test_it_is_not_fetched_from_a_private_address(settings):
    settings.CONNECTIONS_PRIVATE = False
    with (
        serve(lambda *_: pytest.fail("it asked")) as address,
        pytest.raises(LogoNotChecked, match="private address"),
    ):
        check_logo(address)
