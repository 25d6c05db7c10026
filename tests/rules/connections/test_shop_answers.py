"""Answers of shops' APIs that public reports describe: other pages, guards in front, and what PHP adds."""

from __future__ import annotations

import contextlib
import datetime as dt
import gzip
import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from runtime.bounded_http import tls_context
from shop_connections.http import ShopUnreachable
from shop_connections.woocommerce.client import read_orders
from tests.kit.certificates import make_server_context
from tests.kit.http import serve
from tests.kit.woocommerce import FakeShop
from tests.rules.connections.conftest import Talk

LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
BOM = b"\xef\xbb\xbf"
NOTICE = b"<br />\n<b>Notice</b>:  Undefined index: [x] in <b>/srv/shop/tax.php</b> on line <b>12</b><br />\n"
Answer = tuple[int, Any, dict[str, str]]


def read(address: str, **options: Any) -> list[int]:
    usual: dict[str, Any] = {
        "key": "ck_fake",
        "secret": "cs_fake",
        "is_private_allowed": True,
        "seconds": 60.0,
    }
    orders = read_orders(address=address, since=LONG_AGO, **(usual | options))
    return [json.loads(body)["id"] for body, _ in orders]


def serve_changed(shop: FakeShop, change: Callable[[int, Answer], Answer]) -> Any:
    """Serve a shop whose answer to each page goes through a function."""

    def answer(path: str, headers: Any, body: Any) -> Answer:
        page = int(parse_qs(urlsplit(path).query)["page"][-1])
        return change(page, shop.answer(path, headers, body))

    return serve(answer)


def without(answer: Answer, *names: str) -> Answer:
    status, orders, headers = answer
    return status, orders, {name: value for name, value in headers.items() if name not in names}


class TestPages:
    @pytest.fixture
    def shop(self) -> FakeShop:
        return FakeShop()

    def place(self, shop: FakeShop, number: int) -> list[int]:
        return [shop.place() for _ in range(number)]

    def test_a_shop_that_lists_ten_of_fifty_is_read_over_all_its_pages(self, shop):
        ids, shop.most_listed = self.place(shop, 445), 10
        with shop.serve() as address:
            assert read(address) == ids
        assert len(shop.requests) == 45

    def test_it_is_also_read_to_its_end_if_it_does_not_say_how_many_pages_it_has(self, shop):
        ids, shop.most_listed = self.place(shop, 35), 10
        with serve_changed(shop, lambda _, answer: without(answer, "X-WP-TotalPages")) as address:
            assert read(address) == ids

    def test_an_order_that_goes_to_the_trash_meanwhile_hides_none_on_its_small_pages(self, shop):
        ids, shop.most_listed = self.place(shop, 100), 10

        def change(page: int, answer: Answer) -> Answer:
            if page == 3 and shop.orders[ids[0]]["status"] != "trash":
                for id in ids[:25]:
                    shop.trash(id)
            return answer

        with serve_changed(shop, change) as address:
            assert set(read(address)) == set(ids)

    @pytest.mark.parametrize("dropped", ["page", "the whole query"])
    def test_a_shop_whose_pages_repeat_is_left_with_a_reason(self, shop, dropped):
        self.place(shop, 120)

        cut = "&page=" if dropped == "page" else "?"

        def drop(path: str, headers: Any, body: Any) -> Any:
            return shop.answer(path.partition(cut)[0], headers, body)

        with serve(drop) as address, pytest.raises(ShopUnreachable, match=r"Page 2 .* repeats"):
            read(address)
        assert len(shop.requests) == 2

    def test_a_page_whose_number_of_orders_is_zero_counts_by_the_orders_that_it_has(self, shop):
        ids = self.place(shop, 120)

        def change(page: int, answer: Answer) -> Answer:
            status, orders, headers = answer
            return status, orders, headers | ({"X-WP-Total": "0"} if page == 2 else {})

        with serve_changed(shop, change) as address:
            assert read(address) == ids
        assert len(shop.requests) == 3

    def test_an_empty_page_in_the_middle_is_a_reason_and_not_the_end(self, shop):
        self.place(shop, 120)
        zero = {"X-WP-Total": "0", "X-WP-TotalPages": "0"}
        with (
            serve_changed(shop, lambda page, answer: (200, [], zero) if page == 2 else answer) as address,
            pytest.raises(ShopUnreachable, match=r"Page 2 of the 3 pages .* is empty"),
        ):
            read(address)
        assert len(shop.requests) == 2

    def test_a_number_of_orders_that_falls_and_rises_for_ever_is_a_reason(self, shop):
        self.place(shop, 120)

        def change(page: int, answer: Answer) -> Answer:
            return answer[0], answer[1], answer[2] | {"X-WP-Total": "60" if page == 2 else "120"}

        with serve_changed(shop, change) as address, pytest.raises(ShopUnreachable, match="changes with"):
            read(address)
        assert len(shop.requests) < 50

    def test_an_order_whose_date_is_years_ahead_is_no_young_one(self, shop):
        year, young = (shop.place() for _ in range(2))
        shop.orders[year]["date_modified_gmt"] = "2647-11-28T00:00:00"
        with shop.serve() as address:
            until = dt.datetime.fromisoformat(shop.orders[young]["date_modified_gmt"] + "+00:00")
            assert read(address, until=until - dt.timedelta(seconds=1)) == [year]


class TestBodies:
    PAGE = b' [{"id":1}]\n'

    @pytest.mark.parametrize(
        ("body", "headers"),
        [
            (BOM + PAGE, {}),
            (b"\r\n" + BOM + BOM + PAGE, {}),
            (gzip.compress(PAGE), {"Content-Encoding": "gzip"}),
            (gzip.compress(BOM + PAGE), {"Content-Encoding": "GZIP"}),
            (gzip.compress(PAGE), {"Content-Encoding": "x-gzip"}),
            (gzip.compress(PAGE), {}),
        ],
        ids=["mark", "two marks", "gzip", "gzip of a mark", "x-gzip", "no header"],
    )
    def test_a_byte_order_mark_and_gzip_are_read_past(self, body, headers):
        with serve(lambda *_: (200, body, headers | {"X-WP-TotalPages": "1"})) as address:
            assert read(address) == [1]

    def test_the_bound_counts_what_gzip_gives_also_without_its_header(self):
        bomb = gzip.compress(b"[" + b" " * 200_000_000)
        with (
            serve(lambda *_: (200, bomb, {})) as address,
            pytest.raises(ShopUnreachable, match="more than 16,000,000 bytes"),
        ):
            read(address)

    def test_what_comes_after_the_end_of_gzip_is_not_read(self, talk):
        head = b"HTTP/1.1 200 OK\r\nX-WP-TotalPages: 1\r\n\r\n"
        address = talk(head + gzip.compress(self.PAGE), b"\0" * 65536, repeat=True)
        assert read(address) == [1]

    def test_malformed_headers_write_no_log(self, talk, caplog):
        headers = b"HTTP/1.1 200 OK\r\nno colon\r\n" + (b"x" * 60_000 + b"\r\n") * 80
        assert read(talk(headers + b"\r\n[]")) == []
        assert not caplog.records

    @pytest.mark.parametrize(
        "body",
        [NOTICE + PAGE, PAGE + NOTICE, b"\n\nWarning: Array [0] in /a.php\n" + PAGE],
        ids=["before", "after", "text"],
    )
    def test_a_message_of_php_is_named_with_its_words(self, body):
        with serve(lambda *_: (200, body, {})) as address, pytest.raises(ShopUnreachable) as caught:
            read(address)
        assert "has a message of PHP in it, so turn display_errors off" in str(caught.value)
        words = "Undefined index: [x] in /srv/shop/tax.php" if NOTICE in body else "Warning: Array [0]"
        assert words in str(caught.value) and "<" not in str(caught.value)

    def test_a_page_for_people_is_named(self):
        page = b"<!DOCTYPE html><title>Down for maintenance</title><p>Be back soon"
        with (
            serve(lambda *_: (200, page, {})) as address,
            pytest.raises(ShopUnreachable, match=r"is a page for people.*Down for maintenance"),
        ):
            read(address)


def refusal(code: str) -> dict[str, Any]:
    return {"code": f"woocommerce_rest_{code}", "message": "Sorry", "data": {"status": 401}}


WOO = 'Basic realm="WooCommerce API. Use a consumer key in the username field"'


class TestGuards:
    @pytest.mark.parametrize(
        ("status", "headers", "body", "words"),
        [
            (403, {"cf-mitigated": "challenge"}, b"<title>Just a moment...", "firewall, Cloudflare"),
            (403, {}, b"<title>Attention Required! | Cloudflare</title>", "firewall, Cloudflare"),
            (202, {"SG-Captcha": "challenge"}, b"<html>", "firewall, SiteGround"),
            (403, {}, b'<meta http-equiv="refresh" content="0;/.well-known/sgcaptcha/?r=">', "SiteGround"),
            (403, {}, b"<h1>403 Forbidden</h1>", "A firewall or a plug-in of the shop stopped"),
            (406, {}, b"Not Acceptable! Mod_Security", "A firewall or a plug-in of the shop stopped"),
            (401, {"WWW-Authenticate": 'Basic realm="Staging"'}, b"<h1>401</h1>", "a password of its own"),
            (401, {}, refusal("cannot_view"), "drops the header Authorization"),
            (401, {"WWW-Authenticate": WOO}, refusal("authentication_error"), "The shop refuses the API key"),
            (403, {"Server": "cloudflare"}, refusal("cannot_view"), "The shop refuses the API key"),
        ],
        ids=list("0123456789"),
    )
    def test_what_stands_in_front_of_a_shop_is_named(self, status, headers, body, words):
        with serve(lambda *_: (status, body, headers)) as address, pytest.raises(ShopUnreachable) as caught:
            read(address)
        assert words in str(caught.value)

    def test_words_of_a_firewall_in_an_order_are_none(self):
        orders = [{"id": 1, "billing": {"company": "Cloudflare"}}]
        with serve(lambda *_: (200, orders, {"X-WP-TotalPages": "1", "Server": "cloudflare"})) as address:
            assert read(address) == [1]


class TestTheName:
    """The address is checked; the host header, SNI and the certificate are those of the name."""

    @pytest.fixture
    def serve_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Callable[[Any, str], Any]]:
        names: list[Any] = []

        @contextlib.contextmanager
        def start(answer: Any, host: str) -> Any:
            context, authority = make_server_context(folder=tmp_path, host=host)
            context.sni_callback = lambda _, name, __: names.append(name)
            monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(authority))
            tls_context.cache_clear()
            with serve(answer, tls=context) as address:
                place = ("127.0.0.1", urlsplit(address).port)
                answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place)]
                monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
                yield names

        yield start
        monkeypatch.undo()
        tls_context.cache_clear()

    def test_they_are_those_of_the_name(self, serve_name):
        hosts = []

        def answer(path: str, headers: Any, body: Any) -> Answer:
            hosts.append(headers["Host"])
            return 200, [{"id": 1}], {"X-WP-TotalPages": "1"}

        with serve_name(answer, "shop.example") as names:
            assert read("https://shop.example") == [1]
        assert (hosts, names) == (["shop.example"], ["shop.example"])

    def test_a_certificate_of_another_name_is_refused(self, serve_name):
        with (
            serve_name(lambda *_: pytest.fail("it asked"), "other.example"),
            pytest.raises(ShopUnreachable, match="the certificate is for another host"),
        ):
            read("https://shop.example")

    @pytest.mark.parametrize("place", ["https://shop.example:443", "HTTPS://SHOP.example", ""])
    def test_a_redirect_that_writes_the_same_address_otherwise_is_followed(self, serve_name, place):
        def answer(path: str, headers: Any, body: Any) -> Answer:
            if "moved" not in path:
                return 301, b"", {"Location": f"{place}/wp-json/wc/v3/orders?moved=1"}
            return 200, [{"id": 1}], {"X-WP-TotalPages": "1"}

        with serve_name(answer, "shop.example"):
            assert read("https://shop.example") == [1]


class TestSlowShops:
    HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

    @pytest.fixture
    def stranger(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        """Set a password and a proxy in the environment, and return the proxy."""
        netrc = tmp_path / ".netrc"
        netrc.write_text("machine 127.0.0.1 login stranger password stranger\n")
        netrc.chmod(0o600)
        monkeypatch.setenv("HOME", str(tmp_path))
        with socket.create_server(("127.0.0.1", 0)) as proxy:
            proxy.setblocking(False)
            for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"):
                for spelling in (name, name.lower()):
                    monkeypatch.setenv(spelling, f"http://127.0.0.1:{proxy.getsockname()[1]}")
            for name in ("NO_PROXY", "no_proxy"):
                monkeypatch.delenv(name, raising=False)
            yield proxy

    @pytest.mark.parametrize(
        ("scheme", "beginning"),
        [
            ("http", b"H"),
            ("http", HEAD + b"X: "),
            ("http", HEAD + b"\r\n["),
            ("http", HEAD + b"Content-Length: 2000000\r\n\r\n["),
            ("http", HEAD + b"Transfer-Encoding: chunked\r\n\r\n2000\r\n["),
            ("http", HEAD + b"Transfer-Encoding: chunked\r\n\r\n2000;"),
            ("https", b"\x16\x03\x03\x40\x00\x02"),
        ],
        ids=["status", "header", "body", "length", "chunk", "chunk's size", "TLS"],
    )
    def test_one_that_drips_a_byte_a_second_is_left_after_its_time(
        self, talk: Talk, stranger: Any, scheme: str, beginning: bytes
    ) -> None:
        address = talk(beginning, b" ", seconds=1.0, repeat=True).replace("http", scheme)
        with pytest.raises(ShopUnreachable, match="longer than 2 s for an answer"):
            read(address, seconds=2.0)
        (request,) = talk.received
        if scheme == "http":
            assert request.startswith(b"GET /wp-json/wc/v3/orders?")
            assert b"Authorization: Basic Y2tfZmFrZTpjc19mYWtl\r\n" in request  # ck_fake:cs_fake
        else:
            assert request.startswith(b"\x16\x03")  # TLS, and no CONNECT as to a proxy
        with pytest.raises(BlockingIOError):
            stranger.accept()
