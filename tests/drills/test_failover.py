"""The primary is killed under load, its standby takes over, and everything finds it by itself."""

from __future__ import annotations

import os
import statistics
import time

import psycopg
import pytest

from config.beat import LOCK as BEAT_LOCK
from outbox.events.publishing.shards import LOCK as RELAY_LOCK
from tests.kit.customers import Customers
from tests.kit.paired import PairedShop, ValkeyPairedShop, first_times
from tests.kit.shop import Shop
from tests.kit.words import SHARDS

pytestmark = [pytest.mark.flow, pytest.mark.drill]

#: `FAILOVERS=3 make drills TESTS=tests/drills/test_failover.py`
FAILOVERS = int(os.environ.get("FAILOVERS", "20"))
CUSTOMERS = 4
LOAD_SECONDS = 1.5  # between two failovers, at least
PROCESSES = (
    *("web", "worker", "beat:1", "beat:2", "standby", "relay:1", "relay:2"),
    *("consumer", "partitions"),
)
#: No worker dies here, and no outage is as long as a lease: so no mail may be sent twice.
SETTINGS = {"LEASE_SECONDS": "60", "DATABASE_TIMEOUT": "4"}
HOLDERS = f"""
    SELECT count(*) FILTER (WHERE classid = {RELAY_LOCK} AND objsubid = 2),
        count(*) FILTER (WHERE classid = 0 AND objid = {BEAT_LOCK} AND objsubid = 1)
    FROM pg_locks WHERE locktype = 'advisory' AND granted
"""
UNFINISHED = """
    SELECT (SELECT count(*) FROM outbox_events WHERE published_at IS NULL),
        (SELECT count(*) FROM email_notifications WHERE status <> 'sent')
"""
UNPUBLISHED = "SELECT count(*) FROM outbox_events WHERE published_at IS NULL"


def settled(shop: Shop) -> bool:
    try:
        return shop.query(UNFINISHED) == [(0, 0)]
    except psycopg.OperationalError:
        return False


def first_change(shop: Shop, customers: Customers, *, after: float) -> float:
    """Wait for a change that was asked for after this moment; return the seconds until it is acknowledged."""
    shop.until(lambda: customers.first_after(after), "a change is acknowledged")
    first = customers.first_after(after)
    assert first is not None
    return first.ended - after


def assert_nothing_lost(shop: Shop, customers: Customers) -> None:
    """Check that each change is there once, that each mail was sent once, and the order of the events."""
    shop.until(lambda: settled(shop), "all is sent and published")
    assert not customers.wrong
    orders = dict(shop.query("SELECT id::text, status FROM orders"))
    assert set(orders) == customers.placed, "each was placed once"
    assert {order for order, status in orders.items() if status == "paid"} == customers.paid
    mails = shop.query("SELECT order_id::text FROM email_notifications")
    assert sorted(order for (order,) in mails) == sorted(customers.paid)
    assert list(shop.accepted().values()) == [1] * len(customers.paid)
    placed, paid = (first_times(shop, f"order.order.{name}.v1") for name in ("placed", "paid"))
    assert set(placed) == customers.placed and set(paid) == customers.paid
    assert [order for order, time in paid.items() if time < placed[order]] == []
    ended = {name: process.poll() for name, process in shop.processes.items()}
    assert set(ended.values()) == {None}, ended


def report(what: str, took: list[float], customers: Customers) -> None:
    print(
        f"{what}: {len(took)} times, {len(customers.acknowledged)} changes acknowledged, {customers.repeated}"
        f" requests repeated; the first change after {statistics.median(took):.2f} s at the median,"
        f" {max(took):.2f} s at most"
    )


def test_no_acknowledged_change_is_lost_when_the_primary_is_killed():
    with PairedShop(**SETTINGS) as shop:
        shop.start(*PROCESSES)
        took: list[float] = []
        with Customers(shop, count=CUSTOMERS) as customers:
            for _ in range(FAILOVERS):
                shop.until(lambda: shop.pair.primary.ask(HOLDERS) == [(SHARDS, 1)], "the locks have holders")
                time.sleep(LOAD_SECONDS)
                killed = time.monotonic()
                shop.pair.fail_over()
                took.append(first_change(shop, customers, after=killed))
                shop.pair.join()
        report("PostgreSQL killed", took, customers)
        assert_nothing_lost(shop, customers)


@pytest.mark.parametrize("how", ["killed", "switched over"])
def test_a_replica_of_valkey_takes_over_with_every_published_event(how):
    with ValkeyPairedShop(**SETTINGS, EVENT_REPLICAS="1") as shop:
        shop.start(*PROCESSES)
        took: list[float] = []
        with Customers(shop, count=CUSTOMERS) as customers:
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
        assert_nothing_lost(shop, customers)


@pytest.mark.parametrize("replicas", ["0", "1"])
def test_an_event_that_the_replica_never_got_is_waited_for_or_sent_again(replicas):
    with ValkeyPairedShop(EVENT_REPLICAS=replicas) as shop:
        shop.start("web", "relay")
        orders = {shop.place() for _ in range(5)}
        shop.until(lambda: shop.query(UNPUBLISHED) == [(0,)], "they are published")
        ((moment,),) = shop.query("SELECT now()")
        shop.pair.link.drop()
        orders |= {shop.place() for _ in range(20)}
        if replicas == "0":
            shop.until(lambda: shop.query(UNPUBLISHED) == [(0,)], "the primary has them")
        else:
            shop.until(lambda: "0 of 1 replicas have the events" in shop.log("relay"), "the relay waits")
        shop.pair.fail_over()
        lost = len(orders) - len(first_times(shop, "order.order.placed.v1"))
        assert lost == 20, "this is what a replica that lags behind loses"
        shop.pair.join()
        if replicas == "0":
            assert "Sent: 20. Refused: 0." in shop.manage("resend_events", "--since", moment.isoformat())
        shop.until(lambda: shop.query(UNPUBLISHED) == [(0,)], "all is published")
        assert set(first_times(shop, "order.order.placed.v1")) == orders
