"""A shop of each platform over real processes: posts shuffled, doubled and lost, and everything killed.

After one comparison with the shop's API, every order is what it is in the shop, and each of its e-mails
exists once. The drill takes 500 orders.
"""

from __future__ import annotations

import datetime as dt
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from local.machine import HOST
from shop_connections.encryption import _keys
from tests.kit.saleor import FakeSaleor
from tests.kit.shop import Shop
from tests.kit.waiting import PATIENCE
from tests.kit.woocommerce import FakeShop, Post
from tests.kit.words import our_id
from tests.rules.connections.test_woocommerce_posts import EVERY_EMAIL

pytestmark = pytest.mark.flow
KEY, SOURCE = "k" * 40, "tea-shop"
#: Seconds between two posts.
PAUSE_SECONDS = 0.025


Fake = Any  # FakeShop or FakeSaleor
#: The secret of an installation in a Saleor.
PLACE = "s" * 43
FAKES: dict[str, Any] = {"woocommerce": FakeShop, "saleor": FakeSaleor}
#: A shop's clock is behind by two days and more, and each of its changes is told.
SETTINGS: dict[str, Any] = {
    "CONNECTION_KEY": KEY,
    "CONNECTIONS_PRIVATE": "on",
    "NOTIFY_ON": ",".join(EVERY_EMAIL),
    "EMAIL_MAX_AGE_HOURS": "200",
}
BEHIND = dt.timedelta(hours=50)


def connect(shop: Shop, fake: Fake, address: str, *, source: str = SOURCE, **columns: str) -> None:
    """Store a live connection, which in a Saleor has its app unless `columns` are those without one."""
    is_saleor = isinstance(fake, FakeSaleor)
    texts = (PLACE, fake.app, fake.token) if is_saleor else (fake.secret, fake.key, fake.key_secret)
    secret, key, key_secret = (_keys((KEY,)).encrypt(text.encode()).decode() for text in texts)
    live_at = (fake.now - dt.timedelta(hours=1)).isoformat()
    values = {"source": source, "platform": "saleor" if is_saleor else "woocommerce", "address": address}
    values |= {"secret": secret, "api_key": key, "api_secret": key_secret, "statuses": "{}"}
    values |= {"state": "live", "live_at": live_at, "created_at": live_at}
    if is_saleor:
        values["installation"] = json.dumps({"app": fake.app, "keys": fake.keys})
    values |= columns
    quoted = ", ".join(f"'{value}'" for value in values.values())
    shop.query(f"INSERT INTO shop_connections (id, {', '.join(values)}) VALUES (uuidv7(), {quoted})")


def go_on(fake: Fake, lives: list[Iterator[str]], chance: random.Random, *, is_open: bool = True) -> None:
    """Place an order, or change one of those that live. Only an open shop takes an order."""
    if is_open and (not lives or chance.random() < 0.3):
        lives.append(fake.live(fake.place_any()))
    else:
        life = chance.choice(lives)
        if next(life, None) is None:
            lives.remove(life)


def posts_of(fake: Fake, orders: int, chance: random.Random) -> Iterator[Post]:
    """Yield the posts of many orders that change at the same time, in the order in which they arrive."""
    lives: list[Iterator[str]] = []
    near: list[Post] = []
    while len(fake.orders) < orders or lives:
        go_on(fake, lives, chance, is_open=len(fake.orders) < orders)
        for post in fake.deliveries():
            if chance.random() < 0.05:
                continue
            near += [post] * (2 if chance.random() < 0.1 else 1)
        while len(near) > 5:
            yield near.pop(chance.randrange(len(near)))
    chance.shuffle(near)
    yield from near


def send(post: Post, *, port: int, path: str) -> int:
    """Post once, as the shop does, and return the status of the answer.

    Return 0 without one: what a killed process does not answer is lost, or was stored.
    """
    headers, body = post
    try:
        url = f"http://{HOST}:{port}{path}"
        return requests.post(url, data=body, headers=headers, timeout=PATIENCE).status_code
    except requests.RequestException:
        return 0


def play(platform: str, *, orders: int, kills: int, seed: int) -> None:
    chance, fake = random.Random(seed), FAKES[platform](seed=seed)
    fake.now -= BEHIND
    path = f"/connect/{SOURCE}" + (f"/{PLACE}/posts" if platform == "saleor" else "")
    with fake.serve() as address, Shop(durable_valkey=True, **SETTINGS) as shop:
        connect(shop, fake, address)
        shop.start("web", "worker", "beat")
        answers: Counter[bool] = Counter()
        posts = list(posts_of(fake, orders, chance))
        killing = sorted(chance.sample(range(len(posts)), kills))
        for number, post in enumerate(posts):
            if number in killing:
                shop.restart_postgres_hard()
                shop.restart_valkey_hard()
                for name in ("worker", "web", "beat"):
                    shop.kill(name)
                answers[send(post, port=shop.port, path=path) == 202] += 1  # lost
                shop.start("web", "worker", "beat")
                continue
            answers[send(post, port=shop.port, path=path) == 202] += 1
            time.sleep(PAUSE_SECONDS)
        assert answers[False] < len(posts) / 10, answers
        waiting = "SELECT count(*) FROM connection_posts WHERE state = 'waiting'"
        shop.until(lambda: shop.query(waiting) == [(0,)], "every post is processed")
        shop.manage("connections", "check", SOURCE, "--since", "10d", "--repair")
        shop.until(lambda: shop.query(waiting) == [(0,)], "what was lost is processed")
        assert shop.query("SELECT reason FROM connection_posts WHERE state = 'unusable'") == []
        assert shop.manage("connections", "check", SOURCE, "--since", "10d") == ""
        compare(shop, fake, source=SOURCE)
        unsent = (
            "SELECT count(*) FROM email_notifications WHERE status IN ('pending', 'processing', 'failed')"
        )
        shop.until(lambda: shop.query(unsent) == [(0,)], "every e-mail is sent, or was overtaken")
        ended = dict(shop.query("SELECT status, count(*) FROM email_notifications GROUP BY status"))
        assert set(ended) <= {"sent", "discarded"}, ended


def compare(shop: Shop, fake: Fake, *, source: str) -> None:
    """Check each order's state, and that each e-mail that it owes exists once."""
    stored = {
        id: (status, refunded)
        for id, status, refunded in shop.query("SELECT id, status, refunded_amount FROM orders")
    }
    emails: dict[object, Counter[str]] = {}
    for id, event in shop.query("SELECT order_id, event_type FROM email_notifications"):
        emails.setdefault(id, Counter())[event] += 1
    wrong = {}
    for id in fake.orders:
        truth, own = fake.truth(id), our_id(source=source, id=str(id))
        has = emails.get(own, Counter())
        owed = Counter(truth.owed)
        # A parcel whose first post was lost may be first seen once it arrived.
        owed["order.shipped"] -= has["order.delivered"]
        if has["order.completed"]:  # which may be of the same save
            del owed["order.shipped"]
        is_right = stored.get(own, (None, 0)) == (truth.status, truth.refunded)
        if not is_right or has - Counter(truth.emails) or owed - has:
            wrong[id] = (truth, stored.get(own), has)
    assert wrong == {}


@pytest.mark.parametrize("platform", FAKES)
def test_every_order_is_that_of_the_shop_after_kills_and_lost_posts(platform: str) -> None:
    play(platform, orders=8, kills=1, seed=3)


@pytest.mark.drill
@pytest.mark.parametrize("platform", FAKES)
@pytest.mark.parametrize("seed", [1, 2])
def test_five_hundred_orders_are_those_of_the_shop(platform: str, seed: int) -> None:
    play(platform, orders=500, kills=8, seed=seed)
