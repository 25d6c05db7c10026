"""WooCommerce itself posts its orders, and lists them in its API, as we read them.

LIVE_WORDPRESS is the folder of a WordPress with WooCommerce, whose database answers. The tests need php-cli,
and leave orders and products there. They passed on WordPress 6.9.1 with WooCommerce
9.8.3, 10.0.2, 10.5.0 and 10.9.2, and on 7.0.2 with 10.9.2: each with the high-performance order storage, and
10.0.2 also with orders as posts of WordPress.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local.machine import free_port
from shop_connections.woocommerce.client import read_orders
from shop_connections.woocommerce.read import read_head, read_order
from shop_connections.woocommerce.signature import is_ping, is_signed
from tests.kit.http import serve
from tests.kit.needs import needs
from tests.kit.seen_orders import Seen
from tests.kit.waiting import until

WORDPRESS = os.environ.get("LIVE_WORDPRESS", "")
STEPS = Path(__file__).with_name("woocommerce.php")
SECRET = "of-the-webhook"
pytestmark = needs("woocommerce", WORDPRESS and shutil.which("php"))


class LiveShop:
    def __init__(self) -> None:
        self.posts: list[tuple[Any, bytes]] = []
        self.here: dict[int, Seen] = {}
        self.last: dict[int, bytes] = {}  # the last post of each order

    def take(self, path: str, headers: Any, body: bytes) -> tuple[int, Any, dict[str, str]]:
        self.posts.append((headers, body))
        return 200, b"", {}

    def do(self, step: str, id: int = 0, value: str = "") -> str:
        command = ["php", "-d", "memory_limit=512M", str(STEPS), WORDPRESS, step, str(id), value]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def say(self, step: str, id: int, value: str = "") -> list[str]:
        """Take a step, have its posts sent, and return the e-mails of the order."""
        self.do(step, id, value)
        return self.send(id)

    def send(self, id: int) -> list[str]:
        self.posts.clear()
        self.do("send")
        told = []
        for headers, body in self.posts:
            if is_ping(body=body, content_type=headers["Content-Type"]):
                continue
            assert is_signed(body=body, headers=headers, secret=SECRET)
            if json.loads(body)["id"] != id:
                continue
            if head := read_head(body):  # a deleted order has none
                assert head.key and head.address == headers["X-WC-Webhook-Source"].rstrip("/")
                self.last[id] = body
            told += self.here.setdefault(id, Seen()).take(body)
        return told

    def place(self, method: str) -> int:
        id = int(self.do("place", 0, method))
        assert self.send(id) == [], "the customer is at the checkout"
        return id


@pytest.fixture(scope="module")
def shop() -> Iterator[LiveShop]:
    shop = LiveShop()
    with serve(shop.take, read=lambda raw: raw) as address:
        shop.do("hooks", 0, f"{address}/connect/tea {SECRET}")
        shop.do("send")
        yield shop


def test_a_card_is_charged_and_the_order_sent_and_refunded(shop):
    id = shop.place("stripe")
    assert shop.say("gateway", id) == ["order.paid"]
    assert shop.say("ship", id, "JD1") == ["order.shipped"]
    assert shop.say("status", id, "completed") == ["order.completed"]
    assert shop.say("refund", id, "9.90") == ["order.part_refunded"]
    assert shop.say("save", id) == []
    assert shop.say("refund", id, "40.00") == ["order.refunded"]
    assert shop.here[id].state == ("refunded", 4990)


def test_a_bank_transfer_waits_and_a_deleted_refund_is_replaced(shop):
    id = shop.place("bacs")
    assert shop.say("gateway", id) == ["order.placed"]
    assert shop.say("email", id, "ann.lee@example.com") == ["(order.placed)"]
    assert shop.say("status", id, "processing") == ["order.paid"]
    refund = shop.do("refund", id, "10.00")
    assert shop.send(id) == ["order.part_refunded"]
    shop.say("delete_refund", id, refund)
    assert "order.part_refunded" in shop.say("refund", id, "5.00")
    assert shop.here[id].state == ("part_refunded", 500)


def test_cash_on_delivery_is_confirmed_until_it_is_completed(shop):
    id = shop.place("cod")
    assert shop.say("gateway", id) == ["order.confirmed"]
    assert shop.say("status", id, "completed") == ["order.completed"]


def test_a_download_is_completed_at_once(shop):
    id = shop.place("book")
    assert shop.say("gateway", id) == ["order.completed"]


def test_an_abandoned_checkout_is_cancelled_silently_and_an_order_on_hold_is_not(shop):
    id = shop.place("stripe")
    assert shop.say("status", id, "cancelled") == []
    id = shop.place("bacs")
    shop.say("gateway", id)
    assert shop.say("status", id, "cancelled") == ["order.cancelled"]


def test_the_trash_and_back_say_nothing(shop):
    id = shop.place("stripe")
    shop.say("gateway", id)
    assert shop.say("trash", id) == [] and shop.say("restore", id) == []
    assert shop.say("status", id, "refunded") == ["order.refunded"]


def test_its_orders_api_lists_what_changed_as_its_posts_have_it(shop):
    since = dt.datetime.now(dt.UTC)
    id = shop.place("stripe")
    shop.say("gateway", id)
    port = free_port()
    command = ["php", "-d", "memory_limit=512M", "-S", f"127.0.0.1:{port}", str(STEPS)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        address = f"http://127.0.0.1:{port}"
        try:
            until(lambda: _listens(port), "php serves the shop")
            orders = _read(address, since)
        finally:
            server.terminate()
    (body,) = [body for body in orders if json.loads(body)["id"] == id]
    assert Seen().take(body) == ["order.paid"] and "customer_ip_address" not in json.loads(body)
    assert read_head(body) == read_head(shop.last[id])
    assert read_order(body, locale="en") == read_order(shop.last[id], locale="en")


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def _read(address: str, since: dt.datetime) -> list[bytes]:
    orders = read_orders(
        address=address, key="ck_live", secret="cs_live", since=since, is_private_allowed=True, seconds=300
    )
    return [order.body for order in orders]
