"""A real Saleor next to a real orderpost: installed by one address, with all that its orders go through.

It passed with Saleor 3.23.28 and 3.24.0-a.0 (Saleor's main of August 2026).
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from shop_connections.encryption import _keys
from tests.drills.saleor import CHECKOUT, RealSaleor
from tests.kit.http import serve
from tests.kit.needs import needs
from tests.kit.shop import PATIENT, Shop
from tests.kit.words import our_id
from tests.rules.connections.test_woocommerce_posts import EVERY_EMAIL

pytestmark = [pytest.mark.flow, pytest.mark.drill, needs("saleor", CHECKOUT)]
KEY, SOURCE, SECRET = "k" * 40, "tea-shop", "s" * 43
#: A post that came before the one with the customer's wish waits for it in vain, without an effect.
WAITING = (
    "SELECT count(*) FROM connection_posts WHERE state = 'waiting' AND (due_at IS NULL OR due_at <= now())"
)


class Connected:
    """A Saleor with a channel, and an orderpost whose connection is live for it."""

    def __init__(self, saleor: RealSaleor, shop: Shop) -> None:
        self.saleor, self.shop = saleor, shop
        self.channel = saleor.make_channel()
        self.base = f"http://127.0.0.1:{shop.port}/connect/{SOURCE}/{SECRET}"
        connect(shop, saleor.address, channel=self.channel["slug"])

    def emails(self, order: str) -> list[str]:
        id = our_id(source=SOURCE, id=order)
        rows = self.shop.query(f"SELECT event_type FROM email_notifications WHERE order_id = '{id}'")
        return [event for (event,) in rows]

    def until_emails(self, order: str, *events: str) -> None:
        wanted = sorted(events)
        self.shop.until(
            lambda: sorted(self.emails(order)) == wanted, f"{events}, and not {self.emails(order)}"
        )
        self.shop.until(lambda: self.shop.query(WAITING) == [(0,)], "every post is processed")
        assert sorted(self.emails(order)) == wanted

    def state(self, order: str) -> tuple[Any, ...] | None:
        id = our_id(source=SOURCE, id=order)
        rows = self.shop.query(f"SELECT status, refunded_amount FROM orders WHERE id = '{id}'")
        return rows[0] if rows else None

    def bodies(self, order: str, event: str) -> list[str]:
        id = our_id(source=SOURCE, id=order)
        rows = self.shop.query(
            "SELECT body_text FROM email_notifications"
            f" WHERE order_id = '{id}' AND event_type = '{event}' ORDER BY id"
        )
        return [text for (text,) in rows]

    def timeline(self, order: str) -> list[str]:
        answer = self.shop.call("GET", f"/orders/{our_id(source=SOURCE, id=order)}/timeline")
        assert answer.status_code == 200, answer.text
        return [entry["what"] for entry in answer.json()["results"]]


def connect(shop: Shop, address: str, *, channel: str) -> None:
    secret = _keys((KEY,)).encrypt(SECRET.encode()).decode()
    now = dt.datetime.now(dt.UTC)
    shop.query(
        "INSERT INTO shop_connections (id, source, platform, address, secret, state, live_at, going_live,"
        " created_at, statuses, installation) VALUES"
        f" (uuidv7(), '{SOURCE}', 'saleor', '{address}', '{secret}', 'live', now() - interval '1 hour',"
        f" '{json.dumps({'done_at': now.isoformat()})}', now() - interval '1 hour', '{{}}',"
        f" '{json.dumps({'channel': channel})}')"
    )


@pytest.fixture(scope="module")
def connected() -> Iterator[Connected]:
    settings = {
        "CONNECTION_KEY": KEY,
        "CONNECTIONS_PRIVATE": "on",
        "NOTIFY_ON": ",".join(EVERY_EMAIL),
        **PATIENT,
    }
    with RealSaleor() as saleor, Shop(**settings) as shop:
        shop.start("web", "worker", "beat")
        yield Connected(saleor, shop)


def test_an_order_is_told_from_its_placing_to_its_refund(connected):
    saleor, channel = connected.saleor, connected.channel
    app, problem = saleor.install(f"{connected.base}/manifest")
    assert app, problem

    order = saleor.place(channel)
    connected.until_emails(order, "order.placed")
    transaction = saleor.pay(order, "44.90")
    connected.until_emails(order, "order.placed", "order.paid")
    first = saleor.fulfill(channel, order, (1, 0))
    told = ["order.placed", "order.paid", "order.shipped"]
    connected.until_emails(order, *told)
    saleor.fulfill(channel, order, (1, 1), number="JD2")
    told += ["order.completed"]
    connected.until_emails(order, *told)
    saleor.track(first, "JD1")
    told += ["order.shipped"]
    connected.until_emails(order, *told)
    saleor.track(first, "JD1X")
    told += ["order.shipped"]
    connected.until_emails(order, *told)
    assert ["JD1X" in text for text in connected.bodies(order, "order.shipped")] == [False, False, True]
    saleor.refund(transaction, "5.00")
    told += ["order.part_refunded"]
    connected.until_emails(order, *told)
    assert connected.state(order) == ("part_refunded", 500)
    steps = [what for what in connected.timeline(order) if what.startswith("order.")]
    # The second parcel, which completed the order, has one e-mail with it. A number given later is no step.
    told = ["order.placed", "order.paid", "order.shipped", "order.shipped", "order.completed"]
    assert sorted(steps) == sorted([*told, "order.part_refunded"])

    cancelled = saleor.place(channel)
    connected.until_emails(cancelled, "order.placed")
    saleor.cancel(cancelled)
    connected.until_emails(cancelled, "order.placed", "order.cancelled")

    confirmed = saleor.place(channel)
    connected.until_emails(confirmed, "order.placed")
    saleor.confirm(confirmed)
    connected.until_emails(confirmed, "order.placed", "order.confirmed")
    saleor.fulfill(channel, confirmed, (1, 0), notify=False, number="JD3")
    connected.shop.until(
        lambda: "JD3" in str(connected.shop.query("SELECT tracking_number FROM shipments")),
        "the parcel is stored",
    )
    connected.until_emails(confirmed, "order.placed", "order.confirmed")

    elsewhere = saleor.place(saleor.make_channel())
    last = saleor.place(channel)
    connected.until_emails(last, "order.placed")
    assert connected.state(elsewhere) is None, "it is of another channel"

    saleor.uninstall(app)
    unheard = saleor.place(channel)
    saleor.fulfill(channel, last, (1, 0))
    # The comparison leaves out what was saved just now, whose post may still come. It finds the older order
    # by the event of its parcel.
    saleor.move_back(unheard, minutes=30)
    saleor.move_back(last, minutes=2 * 24 * 60, parcels=15)
    app, problem = saleor.install(f"{connected.base}/manifest")
    assert app, problem
    heard = saleor.place(channel)
    connected.until_emails(heard, "order.placed")
    assert connected.state(unheard) is None
    connected.shop.manage("connections", "check", SOURCE, "--since", "1d", "--repair")
    connected.until_emails(unheard, "order.placed")
    # Nobody has paid it, so the parcel says that the order is confirmed.
    connected.until_emails(last, "order.placed", "order.confirmed", "order.shipped")
    saleor.uninstall(app)


def test_what_comes_back_and_its_replacement_tell_of_the_new_parcel_alone(connected):
    saleor, channel = connected.saleor, connected.channel
    app, problem = saleor.install(f"{connected.base}/manifest")
    assert app, problem
    order = saleor.place(channel)
    saleor.pay(order, "44.90")
    parcels = [saleor.fulfill(channel, order, (1, 0)), saleor.fulfill(channel, order, (1, 0))]
    shop = connected.shop
    shop.until(lambda: connected.emails(order).count("order.shipped") == 2, "both parcels are told")
    told = connected.emails(order)
    saleor.send_back(order, parcels[0])  # Saleor deletes the parcel, of which no line is left
    replacement = saleor.send_back(order, parcels[1], replace=True)
    saleor.fulfill(channel, replacement, (1,), number="JD9")
    connected.until_emails(replacement, "order.shipped")
    assert sorted(connected.emails(order)) == sorted(told)
    saleor.uninstall(app)


def test_a_token_of_another_app_is_refused_in_the_dashboard(connected):
    saleor = connected.saleor
    token = saleor.make_token("other")
    answer = requests.post(f"{connected.base}/register", json={"auth_token": token}, timeout=60)
    assert answer.status_code == 400 and "orderpost.tea-shop" in answer.json()["error"]["message"]
    wrong = connected.base.replace(SECRET, "t" * 43)
    assert saleor.install(f"{wrong}/manifest") == (
        "",
        "App internal error (404). Try later or contact with app support.",
    )


def test_a_post_of_another_app_with_our_query_does_not_count(connected):
    saleor = connected.saleor
    app, problem = saleor.install(f"{connected.base}/manifest")
    assert app, problem
    manifest = requests.get(f"{connected.base}/manifest", timeout=60).json()
    posts: list[tuple[dict[str, str], bytes]] = []

    def answer(path: str, headers: Any, body: bytes) -> tuple[int, Any, dict[str, str]]:
        if body:
            posts.append((dict(headers), body))
        return 200, {}, {}

    with serve(answer, read=lambda raw: raw) as address:
        manifest |= {"id": "thief", "tokenTargetUrl": f"{address}/register"}
        manifest["webhooks"][0]["targetUrl"] = f"{address}/posts"

        def show(path: str, headers: Any, body: bytes) -> tuple[int, Any, dict[str, str]]:
            return 200, manifest, {}

        with serve(show) as shown:
            thief, problem = saleor.install(f"{shown}/manifest")
        assert thief, problem
        posts.clear()
        saleor.place(connected.channel)
        connected.shop.until(lambda: posts, "the other app has its post")
    headers, body = posts[0]
    kept = {name: headers[name] for name in ("Content-Type", "Saleor-Signature")}
    answered = requests.post(f"{connected.base}/posts", data=body, headers=kept, timeout=60)
    assert answered.status_code == 401
    saleor.uninstall(thief)
    saleor.uninstall(app)
