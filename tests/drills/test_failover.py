"""The primary is killed under load, its standby takes over, and everything finds it by itself."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from events.publishing.shards import LOCK as RELAY_LOCK
from tests.kit.audit import expect_nothing_wrong
from tests.kit.customers import Acknowledged, Customers
from tests.kit.failover import ValkeyPair
from tests.kit.listener import Listener
from tests.kit.paired import SETTINGS, PairedShop
from tests.kit.shop import Shop
from tests.kit.words import SHARDS

pytestmark = [pytest.mark.flow, pytest.mark.drill]

#: `FAILOVERS=3 make drills TESTS=tests/drills/test_failover.py`
FAILOVERS = int(os.environ.get("FAILOVERS", "20"))
RATE = 12.0  # changes a second
LOAD_SECONDS = 1.5  # between two failovers, at least
PROCESSES = (
    *("web", "worker", "beat:1", "beat:2", "standby", "relay:1", "relay:2"),
    *("consumer", "partitions"),
)
HOLDERS = f"""
    SELECT count(*) FROM pg_locks
    WHERE locktype = 'advisory' AND granted AND classid = {RELAY_LOCK} AND objsubid = 2
"""


class ValkeyPairedShop(Shop):
    """A shop whose Valkey has a replica."""

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.settings = settings
        self.pair = ValkeyPair(folder=self.folder)
        self.valkey = self.pair  # type: ignore[assignment]  # has what a shop needs of it


def placed_in(shop: Shop) -> set[str]:
    """Return the orders of which the broker has the first event."""
    with redis.Redis.from_url(shop.valkey.url, decode_responses=True) as client:
        entries: Any = client.xrange("order.order.placed.v1")
    return {fields["key"] for _, fields in entries}


def first_change(shop: Shop, customers: Customers, *, after: float) -> float:
    """Wait for a change that was asked for after this moment; return the seconds until it is acknowledged."""

    def later() -> list[Acknowledged]:
        return [change for change in list(customers.acknowledged) if change.began > after]

    shop.until(later, "a change is acknowledged")
    return min(change.ended for change in later()) - after


@contextmanager
def customers_of(shop: Shop) -> Iterator[Customers]:
    """Run customers and a listener. Then check that nothing is lost or doubled, and no process exited."""
    listener = Listener(url=shop.valkey.url)
    listener.start()
    with Customers(shop, rate=RATE) as customers:
        yield customers
    expect_nothing_wrong(shop, customers, listener)
    ended = {name: process.poll() for name, process in shop.processes.items()}
    assert set(ended.values()) == {None}, ended


def report(what: str, took: list[float], customers: Customers) -> None:
    print(
        f"{what}: {len(took)} times, {len(customers.acknowledged)} changes acknowledged, {customers.retries}"
        f" requests repeated; the first change after {statistics.median(took):.2f} s at the median,"
        f" {max(took):.2f} s at most"
    )


def test_no_acknowledged_change_is_lost_when_the_primary_is_killed():
    with PairedShop(**SETTINGS) as shop:
        shop.start(*PROCESSES)
        took: list[float] = []
        with customers_of(shop) as customers:
            for _ in range(FAILOVERS):
                shop.until(lambda: shop.pair.primary.ask(HOLDERS) == [(SHARDS,)], "the locks have holders")
                time.sleep(LOAD_SECONDS)
                killed = time.monotonic()
                shop.pair.fail_over()
                took.append(first_change(shop, customers, after=killed))
                shop.pair.join()
            report("PostgreSQL killed", took, customers)


@pytest.mark.parametrize("how", ["killed", "switched over"])
def test_a_replica_of_valkey_takes_over_with_every_published_event(how):
    with ValkeyPairedShop(**SETTINGS, EVENT_REPLICAS="1") as shop:
        shop.start(*PROCESSES)
        took: list[float] = []
        with customers_of(shop) as customers:
            for _ in range(FAILOVERS):
                time.sleep(LOAD_SECONDS)
                began = time.monotonic()
                if how == "killed":
                    shop.pair.fail_over()
                else:
                    shop.pair.switch_over()
                took.append(first_change(shop, customers, after=began))
                if how == "killed":
                    shop.pair.join()
            report(f"Valkey {how}", took, customers)


@pytest.mark.parametrize("replicas", ["0", "1"])
def test_an_event_that_the_replica_never_got_is_waited_for_or_sent_again(replicas):
    with ValkeyPairedShop(EVENT_REPLICAS=replicas) as shop:
        shop.start("web", "relay")
        orders = {shop.place() for _ in range(5)}
        shop.until(shop.all_published, "they are published")
        ((moment,),) = shop.query("SELECT now()")
        shop.pair.link.drop()
        orders |= {shop.place() for _ in range(20)}
        if replicas == "0":
            shop.until(shop.all_published, "the primary has them")
        else:
            shop.until(lambda: "0 of 1 replicas have the events" in shop.log("relay"), "the relay waits")
        shop.pair.fail_over()
        lost = len(orders) - len(placed_in(shop))
        assert lost == 20, "this is what a replica that lags behind loses"
        shop.pair.join()
        if replicas == "0":
            assert "Sent: 20. Refused: 0." in shop.manage("resend_events", "--since", moment.isoformat())
        shop.until(shop.all_published, "all is published")
        assert placed_in(shop) == orders
