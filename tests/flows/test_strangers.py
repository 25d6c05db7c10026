"""Strangers at a web process without a proxy: what they send slowly, or often, stops no order.

A stranger has no live token or session. Each attack runs while a shop places orders.
"""

from __future__ import annotations

import time

import pytest
import requests

from local.machine import HOST
from tests.kit.shop import KEYS, Shop
from tests.kit.strangers import (
    Orders,
    Repeated,
    SlowBodies,
    made_up_headers,
    place_orders,
)
from tests.kit.waiting import PATIENCE
from tests.kit.words import sign
from web.front.front import BODY_SECONDS

pytestmark = pytest.mark.flow
PASSWORD = "a-long-password"
FILE = "/admin/notifications/emailnotification/csv/"
CONNECTION = """
    INSERT INTO shop_connections (id, source, platform, address, secret, state, statuses)
    VALUES (gen_random_uuid(), 'good', 'woocommerce', 'https://shop.example', '', 'live', '{}')
    ON CONFLICT DO NOTHING
"""
ATTACKED = ["/connect/good", "/connect/unknown", "/webhooks/sendgrid", "/admin/login/"]
MAILS = 20_000
#: Of one path, without a proxy: twice as many as a web process has threads.
CONNECTIONS = 216


@pytest.fixture
def shop(shared_shop: Shop) -> Shop:
    shared_shop.query(CONNECTION)
    return shared_shop


def url(shop: Shop, path: str = "") -> str:
    return f"http://{HOST}:{shop.port}{path}"


def orders_of(shop: Shop, *, count: int = 15) -> Orders:
    token = str(shop.session.headers["Authorization"]).removeprefix("Bearer ")
    orders = place_orders(url(shop), token, count=count)
    print(orders)
    return orders


def file_of(shop: Shop, cookie: dict[str, str]) -> bytes:
    """Return the file of all e-mails, or nothing if others use the slow pages."""
    answer = requests.get(url(shop, FILE), headers=cookie, timeout=PATIENCE)
    return answer.content if answer.ok else b""


def signed_webhook(shop: Shop) -> requests.Response:
    """Post what SendGrid would post."""
    sent_at, body = str(int(time.time())), b"[]"
    headers = {
        "X-Twilio-Email-Event-Webhook-Signature": sign(sent_at.encode() + body, key=KEYS["sendgrid"]),
        "X-Twilio-Email-Event-Webhook-Timestamp": sent_at,
        "Content-Type": "application/json",
    }
    return requests.post(url(shop, "/webhooks/sendgrid"), data=body, headers=headers, timeout=60)


@pytest.mark.parametrize("path", ATTACKED)
@pytest.mark.parametrize("is_silent", [True, False], ids=["silent", "slow"])
def test_slow_bodies_of_strangers_refuse_no_order(shop: Shop, path: str, is_silent: bool) -> None:
    with SlowBodies(shop.port, path, count=CONNECTIONS, is_silent=is_silent).running() as attack:
        shop.until(lambda: attack.statuses["503"], "those beyond the places are refused")
        orders = orders_of(shop)
        assert requests.get(url(shop, "/healthz"), timeout=60).status_code == 200
        shop.until(lambda: attack.statuses["408"], "the slow ones are ended")
    assert orders.refused == 0, orders


def test_a_slow_body_of_a_caller_with_a_token_is_ended_and_holds_no_slot(shop: Shop) -> None:
    path = "/api/v1/orders"
    token = str(shop.session.headers["Authorization"])
    with SlowBodies(shop.port, path, count=24, authorization=token).running() as attack:
        orders = orders_of(shop)
        shop.until(lambda: len(attack.held_seconds) >= 24, "they are ended")
    assert orders.refused == 0 and set(attack.statuses) == {"408"}
    assert min(attack.held_seconds) > BODY_SECONDS - 1


def test_clients_that_send_headers_and_then_nothing_lose_their_places_for_a_webhook(shop: Shop) -> None:
    """Eight of them stay for as long as the server lets them, as if for ten minutes."""
    attack = SlowBodies(shop.port, "/webhooks/sendgrid", count=8, is_silent=True, is_once=True)
    with attack.running():
        shop.until(lambda: len(attack.held_seconds) == 8, "the server has closed all of them")
        assert signed_webhook(shop).status_code == 200
    assert attack.statuses == {"408": 8}


@pytest.mark.parametrize("headers", [{}, {"X-Twilio-Email-Event-Webhook-Signature": "A" * 88}])
def test_a_webhook_is_taken_and_no_order_refused_while_thirty_clients_send_unsigned_ones(
    shop: Shop, headers: dict[str, str]
) -> None:
    body = b"x" * 100_000

    def ask() -> int:
        answer = requests.post(url(shop, "/webhooks/sendgrid"), data=body, headers=headers, timeout=60)
        return answer.status_code

    with Repeated(ask, clients=30).running() as attack:
        shop.until(lambda: attack.statuses.total() > 30, "they are answered")
        assert signed_webhook(shop).status_code == 200
        orders = orders_of(shop)
        assert signed_webhook(shop).status_code == 200
    assert orders.refused == 0, orders
    assert {401} <= set(attack.statuses) <= {0, 401, 503}


@pytest.mark.parametrize("path", ["/connect/good", "/connect/unknown", "/webhooks/sendgrid"])
def test_thirty_clients_with_forged_signatures_refuse_no_order(shop: Shop, path: str) -> None:
    def ask() -> int:
        headers = made_up_headers(path)
        return requests.post(url(shop, path), data=b"[]", headers=headers, timeout=60).status_code

    with Repeated(ask, clients=30).running() as attack:
        shop.until(lambda: attack.statuses.total() > 30, "they are answered")
        orders = orders_of(shop)
    assert orders.refused == 0, orders


def test_thirty_strangers_at_the_login_refuse_no_order(shop: Shop) -> None:
    def ask() -> int:
        values = {"username": "ann", "password": "wrong", "csrfmiddlewaretoken": "a" * 32}
        headers = made_up_headers("/admin/login/")
        return requests.post(url(shop, "/admin/login/"), data=values, headers=headers, timeout=60).status_code

    with Repeated(ask, clients=30).running() as attack:
        shop.until(lambda: attack.statuses.total() > 30, "they are answered")
        orders = orders_of(shop)
    assert orders.refused == 0, orders


def test_thirty_searches_and_files_of_staff_refuse_no_order(shop: Shop) -> None:
    if not shop.query("SELECT FROM auth_user WHERE username = 'ada'"):
        names = ("--username", "ada", "--email", "ada@example.com")
        shop.manage("createsuperuser", "--noinput", *names, DJANGO_SUPERUSER_PASSWORD=PASSWORD)
    shop.insert_mails(MAILS)
    with requests.Session() as session:
        session.get(url(shop, "/admin/login/"), timeout=60)
        values = {"username": "ada", "password": PASSWORD}
        values["csrfmiddlewaretoken"] = str(session.cookies["csrftoken"])
        session.post(url(shop, "/admin/login/"), data=values, timeout=60)
        cookie = {"Cookie": f"sessionid={session.cookies['sessionid']}"}
    pages = ["/admin/search/?q=u1@example.com", FILE]

    def ask() -> int:
        page = pages[int(time.monotonic() * 1000) % 2]
        return requests.get(url(shop, page), headers=cookie, timeout=PATIENCE).status_code

    with Repeated(ask, clients=30).running() as attack:
        shop.until(lambda: attack.statuses.total() > 10, "they are answered")
        orders = orders_of(shop)
    shop.until(lambda: file_of(shop, cookie).count(b"\r\n") > MAILS, "a file is complete")
    assert orders.refused == 0, orders
    assert attack.statuses[200] and set(attack.statuses) <= {0, 200, 409, 429, 503}
