"""Faults of a night: how soon `manage.py status` and the admin's first page name the cause and the cure.

Each has to be named within 45 seconds. A run prints the seconds.
"""

from __future__ import annotations

import html
import json
import re
import signal
import time
from collections.abc import Iterator

import pytest
import requests

from tests.kit.shop import Shop

pytestmark = pytest.mark.flow

NAMED_SECONDS = 45.0
PASSWORD = "a-long-word-of-tests"
NAMES = {"DJANGO_SUPERUSER_USERNAME": "night", "DJANGO_SUPERUSER_EMAIL": "night@example.com"}


@pytest.fixture
def shop() -> Iterator[Shop]:
    """Return a shop with a standby, which sends while the worker does not."""
    with Shop(POLL_INTERVAL="5", LEASE_SECONDS="30") as shop:
        shop.start("web", "worker", "beat", "standby")
        shop.manage("createsuperuser", "--noinput", DJANGO_SUPERUSER_PASSWORD=PASSWORD, **NAMES)
        yield shop


@pytest.fixture
def page(shop) -> requests.Session:
    session = requests.Session()
    url = f"http://127.0.0.1:{shop.port}/admin/login/"
    session.get(url, timeout=30)
    form = {"username": "night", "password": PASSWORD, "next": "/admin/"}
    form |= {"csrfmiddlewaretoken": session.cookies["csrftoken"] or ""}
    session.post(url, data=form, headers={"Referer": url}, timeout=30).raise_for_status()
    return session


def needs(shop: Shop) -> list[str]:
    return list(json.loads(shop.manage("status", "--json"))["needs"])


def first_page(shop: Shop, page: requests.Session) -> str:
    answer = page.get(f"http://127.0.0.1:{shop.port}/admin/?part=1", timeout=30)
    assert answer.status_code == 200
    return html.unescape(answer.text)


def expect(shop: Shop, page: requests.Session, sentence: str) -> None:
    """Wait until the status and the page have a sentence that matches."""
    began, seconds = time.monotonic(), {}
    places = {"status": lambda: "\n".join(needs(shop)), "page": lambda: first_page(shop, page)}

    def named() -> bool:
        for place, read in places.items():
            if place not in seconds and re.search(sentence, read()):
                seconds[place] = time.monotonic() - began
        return len(seconds) == len(places)

    shop.until(named, sentence, seconds=NAMED_SECONDS)
    print(f"{sentence!r}:", ", ".join(f"{place} {took:.1f} s" for place, took in seconds.items()))


def test_a_frozen_worker_is_named_although_the_standby_sends(shop, page):
    shop.until(lambda: "worker" in first_page(shop, page), "the worker has a row")
    assert needs(shop) == []
    shop.signal("worker", signal.SIGSTOP)
    expect(shop, page, r"worker \d+ on \S+: no beat for \d+ s: restart it")
    order = shop.place()
    shop.pay(order)
    shop.until(lambda: shop.all_sent(1), "the standby sends")
    shop.signal("worker", signal.SIGCONT)
    shop.until(lambda: needs(shop) == [], "it beats again")


def test_a_process_that_stops_cleanly_leaves_no_row(shop):
    rows = "SELECT kind FROM heartbeats WHERE kind IS NOT NULL ORDER BY 1"
    shop.start("relay", "consumer", "partitions")
    kinds = ["beat", "consumer", "partitions", "relay", "standby", "web", "worker"]
    shop.until(lambda: [kind for (kind,) in shop.query(rows)] == kinds, "each has a row")
    for kind in kinds:
        assert shop.terminate(kind, seconds=60)
    assert shop.query(rows) == []
