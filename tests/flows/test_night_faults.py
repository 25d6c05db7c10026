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

from tests.kit.roles import RUNNING
from tests.kit.shop import Shop
from tests.kit.waiting import PATIENCE

pytestmark = pytest.mark.flow

NAMED_SECONDS = 45.0
PASSWORD = "a-long-word-of-tests"
NAMES = {"DJANGO_SUPERUSER_USERNAME": "night", "DJANGO_SUPERUSER_EMAIL": "night@example.com"}


@pytest.fixture(scope="module")
def running() -> Iterator[Shop]:
    """Return a shop with a standby, which sends while the worker does not."""
    with Shop(POLL_INTERVAL="5", LEASE_SECONDS="30", BREAKER_OPEN_SECONDS="2") as shop:
        shop.start("web", "worker", "beat", "standby")
        shop.manage("createsuperuser", "--noinput", DJANGO_SUPERUSER_PASSWORD=PASSWORD, **NAMES)
        shop.until(lambda: "ready." in shop.log("worker"), "the worker is ready")
        shop.until(lambda: needs(shop) == [], "a process has polled")
        yield shop


@pytest.fixture
def shop(running) -> Iterator[Shop]:
    """Return the shop without orders. It keeps its user, whose session the pages need."""
    yield running
    running.sandbox.reset()
    running.query("TRUNCATE orders, email_notifications, outbox_events CASCADE")


@pytest.fixture(scope="module")
def page(running) -> requests.Session:
    shop = running
    session = requests.Session()
    url = f"http://127.0.0.1:{shop.port}/admin/login/"
    session.get(url, timeout=PATIENCE)
    form = {"username": "night", "password": PASSWORD, "next": "/admin/"}
    form |= {"csrfmiddlewaretoken": session.cookies["csrftoken"] or ""}
    session.post(url, data=form, headers={"Referer": url}, timeout=PATIENCE).raise_for_status()
    return session


def needs(shop: Shop) -> list[str]:
    return list(json.loads(shop.manage("status", "--json"))["needs"])


def first_page(shop: Shop, page: requests.Session) -> str:
    answer = page.get(f"http://127.0.0.1:{shop.port}/admin/?part=1", timeout=PATIENCE)
    assert answer.status_code == 200
    return html.unescape(answer.text)


def expect(shop: Shop, page: requests.Session, sentence: str) -> None:
    """Wait until the page and then the status, whose process costs a second of CPU, have a sentence."""
    began, seconds = time.monotonic(), {}
    places = {"page": lambda: first_page(shop, page), "status": lambda: "\n".join(needs(shop))}

    def named() -> bool:
        for place, read in places.items():
            if place not in seconds:
                if not re.search(sentence, read()):
                    return False
                seconds[place] = time.monotonic() - began
        return True

    shop.until(named, sentence, seconds=NAMED_SECONDS)
    print(f"{sentence!r}:", ", ".join(f"{place} {took:.1f} s" for place, took in seconds.items()))


def expect_end(shop: Shop, page: requests.Session, words: str) -> None:
    """Wait until the page has these words no more, and then until nothing needs a person."""
    shop.until(lambda: words not in first_page(shop, page), f"the page says {words} no more")
    shop.until(lambda: needs(shop) == [], "nothing needs a person")


def test_a_frozen_worker_is_named_although_the_standby_sends(shop, page):
    shop.until(lambda: "worker" in first_page(shop, page), "the worker has a row")
    assert needs(shop) == []
    shop.signal("worker", signal.SIGSTOP)
    expect(shop, page, r"worker \(process (\d+) on \S+\): no beat for \d+ s: it is frozen: `kill -CONT \1`")
    order = shop.place()
    shop.pay(order)
    shop.until(lambda: shop.all_sent(1), "the standby sends")
    shop.signal("worker", signal.SIGCONT)
    expect_end(shop, page, "it is frozen")


def buy(shop: Shop, count: int) -> None:
    for _ in range(count):
        shop.pay(shop.place())


def test_a_refused_account_is_named_with_the_setting(shop, page):
    shop.sandbox.fail(kind="status", status=401, message="the provided authorization grant is invalid")
    buy(shop, 1)
    expect(shop, page, r"sendgrid refuses our account since \d\d:\d\d \(401\): check SENDGRID_API_KEY")
    assert "refusing us" in first_page(shop, page)
    shop.sandbox.heal()
    shop.until(lambda: shop.all_sent(1), "the e-mail is sent")
    expect_end(shop, page, "refuses our account")


def test_a_refused_sender_is_named_until_its_first_acceptance(shop, page):
    shop.sandbox.fail(
        kind="status", status=403, message="The from address does not match a verified Sender Identity."
    )
    buy(shop, 2)
    expect(shop, page, r"sendgrid refuses \S+, the sender of .*: verify it at the provider")
    shop.sandbox.heal()
    shop.until(lambda: "sent" in shop.statuses(), "one is accepted")
    assert needs(shop) == []


def test_a_provider_that_fails_is_named_with_its_answer(shop, page):
    shop.sandbox.fail(kind="status", status=500, message="internal error")
    buy(shop, 6)
    # The breaker of the test before may have closed just now.
    expect(
        shop,
        page,
        r"sendgrid fails( again and again)? since \d\d:\d\d \(500\): check the status page and the account",
    )
    shop.sandbox.heal()
    # It ends a minute after the breaker last closed. Meanwhile events wait, since this shop has no relay.
    shop.until(lambda: shop.all_sent(6), "all is sent")
    shop.until(lambda: "sendgrid fails" not in first_page(shop, page), "the page names it no more")
    shop.until(lambda: "sendgrid" not in str(needs(shop)), "the alarm ends")


def test_a_stopped_valkey_is_named_and_its_return_is_logged(shop, page):
    shop.valkey.kill()
    expect(shop, page, r"Valkey does not answer \(the connection is refused\): start it again")
    shop.until(lambda: "waiting for Valkey" in shop.log("worker"), "the worker waits")
    shop.valkey.start(log=shop.folder / "valkey.log")
    shop.until(lambda: "Valkey is back" in shop.log("worker"), "the worker says that it is back")
    expect_end(shop, page, "Valkey does not answer")
    assert "Deprecat" not in shop.log("worker")


def test_a_process_that_stops_cleanly_leaves_no_row():
    rows = "SELECT kind FROM heartbeats WHERE kind IS NOT NULL ORDER BY 1"
    with Shop() as shop:
        shop.start(*RUNNING)
        shop.until(lambda: [kind for (kind,) in shop.query(rows)] == sorted(RUNNING), "each has a row")
        for kind in RUNNING:
            assert shop.terminate(kind, seconds=60)
        assert shop.query(rows) == []
