"""The reader of a shop's orders API, and shops that do it harm."""

from __future__ import annotations

import datetime as dt
import errno
import gzip
import ipaddress
import itertools
import json
import socket
import ssl
import threading
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from runtime import bounded_http
from runtime.ip_addresses import is_public
from shop_connections import http
from shop_connections.compare import MOST_HELD_BYTES
from shop_connections.http import OutOfTime, ShopUnreachable
from shop_connections.shop_order import ReadOrder
from shop_connections.woocommerce import client
from shop_connections.woocommerce.client import PAGE_SIZE, read_orders
from tests.kit.certificates import make_server_context
from tests.kit.http import serve
from tests.kit.woocommerce import FakeShop

LONG_AGO = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def read(address: str, *, since: dt.datetime = LONG_AGO, **options: Any) -> list[dict[str, Any]]:
    return [json.loads(body) for body, _ in read_places(address, since=since, **options)]


def read_places(address: str, *, since: dt.datetime = LONG_AGO, **options: Any) -> Iterator[ReadOrder]:
    usual = {"key": "ck_fake", "secret": "cs_fake", "is_private_allowed": True, "seconds": 60.0}
    values: dict[str, Any] = usual | options
    return read_orders(address=address, since=since, **values)


@pytest.fixture
def shop() -> Iterator[FakeShop]:
    shop = FakeShop()
    with shop.serve():
        yield shop


class TestPages:
    def test_it_reads_each_order_that_changed_since_once_over_all_pages(self, shop):
        old = [shop.place() for _ in range(3)]
        since = shop.now.replace(tzinfo=dt.UTC) + dt.timedelta(seconds=1)
        new = [shop.place() for _ in range(120)]
        shop.complete(old[1])
        ids = [order["id"] for order in read(shop.address, since=since)]
        assert ids == [old[1], *new]
        assert len(shop.requests) == 3

    def test_it_reads_the_second_of_since_itself_in_utc(self, shop):
        id = shop.place()
        since = shop.now.replace(tzinfo=dt.UTC).astimezone(dt.timezone(dt.timedelta(hours=5)))
        assert [order["id"] for order in read(shop.address, since=since)] == [id]

    def test_it_asks_for_no_more_than_it_reads(self, shop):
        shop.place()
        (order,) = read(shop.address)
        assert "customer_ip_address" not in order and order["shipping"] and order["billing"]["email"]

    def test_it_reads_until_a_time(self, shop):
        id = shop.place()
        until = shop.now.replace(tzinfo=dt.UTC) + dt.timedelta(seconds=1)
        shop.place()
        assert [order["id"] for order in read(shop.address, until=until)] == [id]

    def test_a_shop_that_a_proxy_took_the_number_of_pages_from_is_read_to_the_end(self):
        pages = [[{"id": number}] * 50 for number in (1, 2)] + [[]]
        with serve(lambda path, headers, body: (200, pages.pop(0), {})) as address:
            assert len(read(address)) == 100

    @pytest.mark.parametrize("change", ["complete", "trash"])
    def test_an_order_that_changes_meanwhile_hides_no_other(self, shop, change):
        ids = [shop.place() for _ in range(120)]
        until = shop.now.replace(tzinfo=dt.UTC) + dt.timedelta(seconds=1)
        seen = []
        for body, _ in read_places(shop.address, until=until):
            seen.append(json.loads(body)["id"])
            if seen[-1] % 10 == 0 and shop.orders[seen[-1]]["status"] == "processing":
                getattr(shop, change)(seen[-1])
        assert sorted(set(seen)) == ids


class TestPauses:
    def test_it_waits_as_the_shop_asks(self, shop):
        shop.place()
        later = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=30)
        shop.api_answers = [
            (429, {"Retry-After": "7"}),
            (503, {"Retry-After": later.strftime("%a, %d %b %Y %H:%M:%S GMT")}),
            (503, {}),
        ]
        waits: list[float] = []
        assert len(read(shop.address, sleep=waits.append)) == 1
        assert waits[0] == 7 and 25 < waits[1] <= 30 and waits[2] == 5

    def test_it_gives_up_if_that_is_too_long_or_too_often(self, shop):
        shop.api_answers = [(429, {"Retry-After": "3600"})]
        with pytest.raises(ShopUnreachable, match="asks to wait 3600 s"):
            read(shop.address)
        shop.api_answers = [(503, {"Retry-After": "1"})] * 4
        with pytest.raises(ShopUnreachable, match="status 503"):
            read(shop.address, sleep=lambda seconds: None)


class TestRefusals:
    @pytest.mark.parametrize(
        ("status", "text"),
        [
            (401, "refuses the API key"),
            (403, "refuses"),
            (404, "permalinks other than Plain"),
            (500, "status 500"),
        ],
    )
    def test_it_says_what_to_do(self, status, text):
        with (
            serve(lambda path, headers, body: (status, {"code": "x"}, {})) as address,
            pytest.raises(ShopUnreachable, match=text) as caught,
        ):
            read(address)
        assert "cs_fake" not in str(caught.value)

    @pytest.mark.parametrize("answer", [b"<html>", b"", {"code": "x"}, b"[" * 100_000, b"\xff"])
    def test_an_answer_that_is_no_list_is_refused(self, answer):
        with (
            serve(lambda path, headers, body: (200, answer, {})) as address,
            pytest.raises(ShopUnreachable, match="The answer of the shop"),
        ):
            read(address)

    @pytest.mark.parametrize(
        "address",
        ["", "shop.example", "ftp://shop.example", "https://", "https://u:p@shop.example", "https://a:99999"],
    )
    def test_an_address_that_is_none_is_refused(self, address):
        with pytest.raises(ShopUnreachable, match="address"):
            read(address)

    def test_http_is_refused_unless_private_shops_are_allowed(self, shop):
        with pytest.raises(ShopUnreachable, match="must begin with https"):
            read(shop.address, is_private_allowed=False)

    def test_a_host_that_does_not_exist_is_named(self):
        with pytest.raises(ShopUnreachable, match=r"the name shop\.invalid does not resolve"):
            read("https://shop.invalid")

    def test_it_reads_over_https(self, tmp_path, monkeypatch):
        context, authority = make_server_context(folder=tmp_path)
        trusting = ssl.create_default_context(cafile=str(authority))
        monkeypatch.setattr(bounded_http, "tls_context", lambda: trusting)
        shop = FakeShop()
        id = shop.place()
        with shop.serve(tls=context) as address:
            assert [order["id"] for order in read(address)] == [id]

    def test_a_certificate_that_nobody_signed_is_refused(self, tmp_path):
        context, _ = make_server_context(folder=tmp_path)
        shop = FakeShop()
        with (
            shop.serve(tls=context) as address,
            pytest.raises(ShopUnreachable, match=r"the certificate is signed by .* not trusted"),
        ):
            read(address)
        assert not shop.requests


class TestPrivateAddresses:
    @pytest.mark.parametrize(
        "address",
        [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1%eth0",
            "fd00::1",
            "ff02::1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b:1::a00:1",
            "fec0::1",
            "::127.0.0.1",
            "::ffff:0:127.0.0.1",
            "2002:7f00:1::1",
            "192.0.0.192",  # public to Python 3.11.7
            "168.63.129.16",  # Azure's server of metadata, public to every Python
            "192.88.99.1",
            "198.18.0.1",
            "203.0.113.9",
            "2001:db8::1",
            "2001:20::1",
            "3fff::1",
            "5f00::1",
        ],
    )
    def test_they_are_not_public(self, address):
        assert not is_public(address)

    @pytest.mark.parametrize("address", ["192.0.0.9", "198.18.0.1", "3fff::1", "2001:db8::1", "fd00::1"])
    def test_they_are_not_public_whatever_this_release_of_python_says(self, address, monkeypatch):
        for kind in (ipaddress.IPv4Address, ipaddress.IPv6Address):
            monkeypatch.setattr(kind, "is_global", True)
        assert not is_public(address)

    @pytest.mark.parametrize("address", ["93.184.215.14", "2606:2800:21f::1", "64:ff9b::5db8:d70e"])
    def test_those_of_the_internet_are(self, address):
        assert is_public(address)

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "2130706433"])
    def test_a_private_shop_is_not_connected_to(self, host):
        server = socket.create_server(("127.0.0.1", 0))
        server.settimeout(0.05)
        with pytest.raises(ShopUnreachable, match="private address"):
            read(f"https://{host}:{server.getsockname()[1]}", is_private_allowed=False)
        with pytest.raises(TimeoutError):
            server.accept()
        server.close()

    def test_a_name_whose_look_up_hangs_is_left(self, monkeypatch):
        ended = threading.Event()
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: ended.wait() and [])
        with pytest.raises(ShopUnreachable, match="longer than 0 s for an answer"):
            read("https://shop.example", seconds=0.1)
        ended.set()

    def test_a_name_is_looked_up_once_and_the_connection_goes_there(self, monkeypatch):
        """A second look-up could give another address (DNS rebinding)."""
        looked_up, connected = [], []
        place = ("93.184.215.14", 443)

        def look_up(host: str, *_: Any, **__: Any) -> list[Any]:
            looked_up.append(host)
            address = place if len(looked_up) == 1 else ("127.0.0.1", 443)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address)]

        def connect(self: socket.socket, address: Any) -> None:
            connected.append(address)
            raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")

        monkeypatch.setattr(socket, "getaddrinfo", look_up)
        monkeypatch.setattr(socket.socket, "connect", connect)
        with pytest.raises(ShopUnreachable, match="the connection is refused"):
            read("https://shop.example", is_private_allowed=False)
        assert looked_up == ["shop.example"] and connected == [place]

    def test_a_name_with_one_private_address_is_refused(self, monkeypatch):
        places = [("93.184.215.14", 443), ("10.0.0.1", 443)]
        answers = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", place) for place in places]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answers)
        with pytest.raises(ShopUnreachable, match="private address"):
            read("https://shop.example", is_private_allowed=False)


class TestRedirects:
    def test_it_follows_one_on_the_same_host(self, shop):
        shop.place()
        shop.api_answers = [(301, {"Location": "/wp-json/wc/v3/orders?dates_are_gmt=true&_fields=id"})]
        assert [list(order) for order in read(shop.address)] == [["id"]]

    @pytest.mark.parametrize(
        "location",
        ["http://169.254.169.254/latest", "https://other.example/", "//other.example/x", "ftp://127.0.0.1/"],
    )
    def test_it_follows_none_to_another_host_or_protocol(self, shop, location):
        shop.api_answers = [(302, {"Location": location})]
        with pytest.raises(ShopUnreachable, match="redirects to"):
            read(shop.address)

    def test_it_follows_none_to_another_port(self, shop):
        with FakeShop().serve() as other:
            shop.api_answers = [(302, {"Location": f"{other}/wp-json/wc/v3/orders"})]
            with pytest.raises(ShopUnreachable, match="redirects to"):
                read(shop.address)

    @pytest.mark.parametrize("location", ["https://[::1", "https://[", "http://a:b:c/"])
    def test_a_location_that_is_no_address_is_refused(self, shop, location):
        shop.api_answers = [(302, {"Location": location})]
        with pytest.raises(ShopUnreachable):
            read(shop.address)

    def test_it_ends_a_circle(self, shop):
        shop.api_answers = [(302, {"Location": "/wp-json/wc/v3/orders"})] * 5
        with pytest.raises(ShopUnreachable, match="status 302"):
            read(shop.address)


class TestEndless:
    HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"

    def test_an_endless_answer_is_cut_at_its_size(self, monkeypatch, talk):
        monkeypatch.setattr(http, "MOST_BYTES", 2**20)
        address = talk(self.HEAD + b"\r\n[" + b" " * 65536, b" " * 65536, repeat=True)
        with pytest.raises(ShopUnreachable, match="has more than"):
            read(address)

    @pytest.mark.parametrize("beginning", [HEAD + b"X: ", HEAD + b"\r\n[", b""])
    def test_an_answer_that_drips_is_cut_after_its_time(self, monkeypatch, talk, beginning):
        monkeypatch.setattr(http, "ANSWER_SECONDS", 0.3)
        address = talk(beginning or b"H", b" " * 3, seconds=0.02, repeat=True)
        with pytest.raises(ShopUnreachable):
            read(address)

    def test_a_shop_that_says_nothing_times_out(self, monkeypatch, talk):
        monkeypatch.setattr(bounded_http, "_READ_SECONDS", 0.1)
        with pytest.raises(ShopUnreachable, match="no answer in time"):
            read(talk(b"", seconds=2))

    def test_an_answer_that_breaks_off_is_none(self, talk):
        with pytest.raises(ShopUnreachable, match="broke off"):
            read(talk(self.HEAD + b"Content-Length: 100\r\n\r\n[]"))

    def test_a_list_that_never_ends_is_left(self, monkeypatch):
        monkeypatch.setattr(client, "_MOST_PAGES", 3)
        ids = itertools.count(1)

        def page(*_: Any) -> Any:
            return 200, [{"id": next(ids)} for _ in range(PAGE_SIZE)], {"X-WP-TotalPages": "999999"}

        with (
            serve(page) as address,
            pytest.raises(ShopUnreachable, match="more than 3 pages"),
        ):
            read(address)

    def test_a_caller_can_allow_it_less(self, shop):
        shop.api_answers = [(429, {"Retry-After": "3"})]
        with pytest.raises(ShopUnreachable, match="asks to wait 3 s"):
            read(shop.address, seconds=2.0, sleep=pytest.fail)


def listed(*members: bytes) -> bytes:
    return b"[" + b",".join(members) + b"]"


class TestBigAnswers:
    def serve(self, *pages: bytes, **headers: str) -> Any:
        left = list(pages)
        return serve(lambda path, _, body: (200, left.pop(0) if left else b"[]", headers))

    def test_a_page_with_more_orders_than_were_asked_for_is_refused_before_they_are_parsed(self):
        page = listed(*[b"{}"] * 5_000_000)
        with self.serve(page) as address, pytest.raises(ShopUnreachable, match="more than 50 orders"):
            read(address)

    @pytest.mark.parametrize("fill", [b"{}", b"[]", b'"\\"\\\\"', b"1.5", b'{"a":[{"b":"]}"}]}'])
    def test_an_order_that_is_too_large_is_left_out_and_hides_no_other(self, fill):
        many = b'{"id":1,"meta_data":' + listed(*[fill] * (1_200_000 // len(fill))) + b"}"
        with self.serve(listed(b'{"id": 0}', many, b' {"id":2}\n')) as address:
            assert [body for body, _ in read_places(address)] == [b'{"id": 0}', b"", b' {"id":2}\n']

    def test_members_are_split_where_a_parser_splits_them(self):
        members = [
            {"a": '",]}[{'},
            {"\\": "\\\\", '"': '\\"'},
            {"a": [[], {}, [{"b": [1, 2, {"c": "é\u2028"}]}]]},
            {},
        ]
        for separators in ((",", ":"), (" , ", " :\n")):
            for ascii in (True, False):
                page = json.dumps(members, separators=separators, ensure_ascii=ascii).encode()
                with self.serve(b"\r\n " + page + b"\n") as address:
                    assert read(address) == members

    @pytest.mark.parametrize(
        "page",
        [
            b"[{}",
            b"[{},]",
            b"[{}]]",
            b"[{}] {}",
            b"[{}}",
            b'[{"a]',
            b"[1,2]",
            b"[{} {}]",
            b"[,{}]",
            b"{},[]",
            b"[nan]",
        ],
    )
    def test_a_page_that_is_no_list_of_orders_is_refused(self, page):
        with self.serve(page) as address, pytest.raises(ShopUnreachable, match="The answer of the shop"):
            read(address)

    def test_what_gzip_makes_of_an_answer_is_cut_at_the_size(self):
        bomb = gzip.compress(b"[" + b" " * 200_000_000)
        assert len(bomb) < 200_000
        with (
            self.serve(bomb, **{"Content-Encoding": "gzip"}) as address,
            pytest.raises(ShopUnreachable, match="has more than 16,000,000 bytes"),
        ):
            read(address)

    def test_an_answer_with_gzip_is_read(self):
        with self.serve(gzip.compress(b'[{"id":1}]'), **{"Content-Encoding": "gzip"}) as address:
            assert read(address) == [{"id": 1}]
        with (
            self.serve(gzip.compress(b'[{"id":1}]')[:-9], **{"Content-Encoding": "gzip"}) as address,
            pytest.raises(ShopUnreachable, match="broke off"),
        ):
            read(address)

    def test_pages_do_not_add_up_in_memory(self):
        """Five pages of 15 MB, in which one order becomes many objects."""
        many = b'{"id":1,"meta_data":' + listed(*[b"{}"] * 20_000) + b"}"
        order = b'{"id":2,"number":"' + b"9" * 300_000 + b'"}'
        page = listed(many, *[order] * (PAGE_SIZE - 1))
        assert 14_000_000 < len(page) < 16_000_000
        pages = [page.replace(b'"id":2', b'"id":%d' % id) for id in range(2, 7)]
        with self.serve(*pages) as address:
            tracemalloc.start()
            try:
                tracemalloc.reset_peak()
                base = tracemalloc.get_traced_memory()[0]
                assert sum(1 for _ in read_places(address, until=LONG_AGO)) == 5 * PAGE_SIZE
                peak = tracemalloc.get_traced_memory()[1] - base
            finally:
                tracemalloc.stop()
        assert peak < MOST_HELD_BYTES


class TestTime:
    def test_without_time_it_asks_for_nothing(self, shop):
        with pytest.raises(ShopUnreachable, match="longer than 0 s for all its orders"):
            read(shop.address, seconds=0.0)
        assert shop.requests == []

    def test_after_its_time_it_says_where_it_goes_on(self, shop, monkeypatch):
        ids = [shop.place() for _ in range(120)]
        orders, seen = read_places(shop.address), []
        with pytest.raises(OutOfTime) as end:
            for body, place in orders:
                seen.append(json.loads(body)["id"])
                assert place[0] == 1 + (len(seen) - 1) // PAGE_SIZE
                if len(seen) == 100:
                    monkeypatch.setattr(http.ShopApi, "_ask", run_out_of_time)
        monkeypatch.undo()
        rest = [json.loads(body)["id"] for body, _ in read_places(shop.address, place=end.value.place)]
        assert seen + rest == ids

    def test_orders_that_went_to_the_trash_meanwhile_hide_no_other(self, shop):
        ids = [shop.place() for _ in range(300)]
        *_, (_, place) = itertools.islice(read_places(shop.address), 201)
        for id in ids[:110]:
            del shop.orders[id]
        rest = [json.loads(body)["id"] for body, _ in read_places(shop.address, place=place)]
        assert set(ids[200:]) <= set(rest)


def run_out_of_time(self: Any, url: str, body: bytes | None) -> Any:
    raise OutOfTime("The time is over.")
