"""The ACL that the docs show limits a shop on a real Valkey to adding its events."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from local.machine import PROJECT, free_port
from local.servers import EmbeddedValkey

PASSWORDS = {"DEFAULT_PASSWORD": "the-first", "SHOP_PASSWORD": "the-second"}
TOPIC = "order.order.placed.v1"
Use = Callable[[redis.Redis], Any]


def documented() -> list[list[str]]:
    """Return the words of each ACL command that the docs show."""
    pages = "".join(page.read_text() for page in (PROJECT / "docs").rglob("*.md"))
    lines = re.findall(r"^ACL SETUSER .+$", pages, flags=re.MULTILINE)
    for name, password in PASSWORDS.items():
        lines = [line.replace(name, password) for line in lines]
    return [line.split() for line in lines]


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    folder: Path = tmp_path_factory.mktemp("acl")
    server = EmbeddedValkey(data=folder / "valkey", port=free_port(), throwaway=True)
    server.start(log=folder / "log")
    with redis.Redis.from_url(server.url) as client:
        for words in documented():
            client.execute_command(*words)
    yield server
    server.stop()


def url_of(valkey: EmbeddedValkey, user: str, name: str) -> str:
    return valkey.url.replace("://", f"://{user}:{PASSWORDS[name]}@")


@pytest.fixture
def ours(valkey: EmbeddedValkey) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(url_of(valkey, "", "DEFAULT_PASSWORD")) as client:
        client.flushall()
        client.xadd(TOPIC, {"key": "1", "value": "{}"})
        client.lpush("orderpost:tasks", "a task")
        yield client


@pytest.fixture
def shop(valkey: EmbeddedValkey, ours: redis.Redis) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(url_of(valkey, "shop", "SHOP_PASSWORD")) as client:
        yield client


def test_two_users_are_documented() -> None:
    assert [words[2] for words in documented()] == ["default", "shop"]


def test_nobody_enters_without_a_password(valkey: EmbeddedValkey) -> None:
    with redis.Redis.from_url(valkey.url) as anybody, pytest.raises(redis.AuthenticationError):
        anybody.ping()


def test_the_example_shop_publishes_as_this_user(
    valkey: EmbeddedValkey, ours: redis.Redis, shop: redis.Redis
) -> None:
    subprocess.run(
        [sys.executable, "examples/shop.py"],
        cwd=PROJECT,
        env=os.environ | {"REDIS_URL": url_of(valkey, "shop", "SHOP_PASSWORD")},
        check=True,
        capture_output=True,
    )
    lengths = {change: ours.xlen(f"order.order.{change}.v1") for change in ("placed", "paid", "completed")}
    assert lengths == {"placed": 2, "paid": 1, "completed": 1}


@pytest.mark.parametrize(
    "use",
    [
        lambda shop: shop.ping(),
        lambda shop: shop.xadd("order.order.part_refunded.v1", {"key": "1", "value": "{}"}),
        # The page warns of these two.
        lambda shop: shop.xadd(TOPIC, {"key": "1", "value": "{}"}, maxlen=0, approximate=False),
        lambda shop: shop.xadd(TOPIC, {"key": "1", "value": "{}"}, id="99999999999999-0"),
    ],
    ids=["ping", "its events", "trimming", "its own ids"],
)
def test_the_shop_may(shop: redis.Redis, use: Use) -> None:
    assert use(shop)


@pytest.mark.parametrize(
    "use",
    [
        lambda shop: shop.xrange(TOPIC),
        lambda shop: shop.xread({TOPIC: "0"}),
        lambda shop: shop.xlen(TOPIC),
        lambda shop: shop.xreadgroup("orderpost", "shop", {TOPIC: ">"}),
        lambda shop: shop.xgroup_create(TOPIC, "shop"),
        lambda shop: shop.xdel(TOPIC, "0-1"),
        lambda shop: shop.xtrim(TOPIC, maxlen=0),
        lambda shop: shop.delete(TOPIC),
        lambda shop: shop.xadd("payment.payment.succeeded.v1", {"key": "1", "value": "{}"}),
        lambda shop: shop.xadd("order.command.cancel_order.v1", {"key": "1", "value": "{}"}),
        lambda shop: shop.xadd("order.order.placed.v1.dlt", {"key": "1", "value": "{}"}),
        lambda shop: shop.lrange("orderpost:tasks", 0, -1),
        lambda shop: shop.lpush("orderpost:tasks", "another task"),
        lambda shop: shop.get("orderpost:owner:orderpost:" + TOPIC),
        lambda shop: shop.set("anything", "1"),
        lambda shop: shop.keys(),
        lambda shop: shop.publish("anything", "1"),
        lambda shop: shop.eval(f"return redis.call('XRANGE', '{TOPIC}', '-', '+')", 0),
        lambda shop: shop.config_get("*"),
        lambda shop: shop.acl_list(),
        lambda shop: shop.client_list(),
        lambda shop: shop.flushall(),
    ],
)
def test_the_shop_may_not(shop: redis.Redis, use: Use) -> None:
    with pytest.raises(redis.exceptions.NoPermissionError):
        use(shop)
