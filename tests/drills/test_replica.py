"""Replicas are killed, frozen, paused, behind a migration and promoted, and no reader notices.

Readers place orders and look each up at once, open pages and files of the admin, and scrape metrics.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

import pytest

from runtime.database.replica import LIMIT_SECONDS
from tests.drills.replicas import (
    FLUSH_SECONDS,
    Pace,
    Readers,
    ReplicatedShop,
    cpu_seconds,
    scans,
    until_caught_up,
)
from tests.kit.servers import frozen

pytestmark = [pytest.mark.flow, pytest.mark.drill]

#: How far behind the replicas get, and how long each other fault lasts.
BEHIND_SECONDS = float(os.environ.get("BEHIND_SECONDS", "60"))
FAULT_SECONDS = 15.0
MEASURED_SECONDS, ORDERS_A_SECOND, PAGES_A_SECOND, ROWS = 30.0, 10.0, 10.0, 50_000
BUSY_PAGES = (
    *("", "orders/order/", "orders/order/?status=completed", "orders/order/?q=User7@example.com"),
    *("notifications/emailnotification/", "notifications/emailnotification/?status=pending"),
    *("notifications/emailnotification/?p=20", "events/domainevent/", "search/?q=S-77"),
)


@pytest.fixture
def shop() -> Iterator[ReplicatedShop]:
    with ReplicatedShop(DATABASE_TIMEOUT="4") as shop:
        shop.start("web")
        shop.until_replica_is_read()
        yield shop


@pytest.fixture
def shop_that_fails_over() -> Iterator[ReplicatedShop]:
    with ReplicatedShop(DATABASE_TIMEOUT="4", fails_over=True) as shop:
        shop.start("web")
        shop.until_replica_is_read()
        yield shop


def report(what: str, readers: Readers) -> None:
    counts = readers.counts
    print(
        f"{what}: {counts.asked} requests, refused {len(counts.refused)}, wrong {len(counts.wrong)},"
        f" the slowest answer {counts.slowest:.2f} s",
        *counts.refused[:1],
        *counts.wrong[:1],
    )


@contextlib.contextmanager
def readers_of(shop: ReplicatedShop, what: str, *, begins_on_replica: bool = True) -> Iterator[Readers]:
    with Readers(shop) as readers:
        if begins_on_replica:
            readers.until_read(*shop.standbys)
        yield readers
    report(what, readers)
    assert readers.counts.refused == [] and readers.counts.wrong == []


def test_a_replica_that_is_killed_or_frozen_refuses_nothing(shop):
    first, second = shop.standbys
    with readers_of(shop, "one replica killed") as readers:
        first.kill()
        time.sleep(FAULT_SECONDS)
        readers.until_read(second)
    with readers_of(shop, "both killed") as readers:
        second.kill()
        time.sleep(FAULT_SECONDS)
        for node in shop.standbys:
            shop.start_standby(node)
        readers.until_read(first, second)
    with readers_of(shop, "one replica frozen") as readers, frozen(first):
        time.sleep(FAULT_SECONDS)
        readers.until_read(second)
    with readers_of(shop, "both frozen") as readers:
        with frozen(first), frozen(second):
            time.sleep(FAULT_SECONDS)
        readers.until_read(first, second)


def test_replicas_that_are_a_minute_behind_answer_nothing(shop):
    with readers_of(shop, f"{BEHIND_SECONDS:g} s behind") as readers:
        for node in shop.standbys:
            node.ask("SELECT pg_wal_replay_pause()")
        time.sleep(LIMIT_SECONDS + FLUSH_SECONDS)
        before = [scans(node) for node in shop.standbys]
        time.sleep(BEHIND_SECONDS - LIMIT_SECONDS - FLUSH_SECONDS)
        assert [scans(node) for node in shop.standbys] == before
        assert "it is more than 5 s behind" in shop.log("web")
        for node in shop.standbys:
            node.ask("SELECT pg_wal_replay_resume()")
        readers.until_read(*shop.standbys)


def test_a_replica_that_lacks_a_migration_is_skipped(shop):
    """A replica without a column that the lists read stands for one that lags behind a migration."""
    primary = shop.pair.primary
    for number in range(100):
        shop.place_named(f"R-{number}")
    with Readers(shop) as readers:
        readers.until_read(*shop.standbys)
    primary.ask("ALTER TABLE orders DROP COLUMN stock_reserved_at")
    for node in shop.standbys:
        until_caught_up(shop, node)
        node.ask("SELECT pg_wal_replay_pause()")
    primary.ask("ALTER TABLE orders ADD COLUMN stock_reserved_at timestamptz")
    with readers_of(shop, "a migration on its way", begins_on_replica=False) as readers:
        shop.until(lambda: "stock_reserved_at does not exist" in shop.log("web"), "the replica is skipped")
        time.sleep(FAULT_SECONDS)
        for node in shop.standbys:
            node.ask("SELECT pg_wal_replay_resume()")
        readers.until_read(*shop.standbys)
        for _ in range(5):
            primary.ask("BEGIN", "LOCK TABLE orders IN ACCESS EXCLUSIVE MODE", "SELECT pg_sleep(1)", "COMMIT")
            time.sleep(1)


def test_a_replica_that_is_promoted_answers_no_more(shop):
    """By mistake, next to a primary that goes on."""
    first, second = shop.standbys
    with readers_of(shop, "one replica promoted") as readers:
        first.ask("SELECT pg_promote()")
        time.sleep(FAULT_SECONDS)
        readers.until_read(second)
    with readers_of(shop, "both promoted"):
        second.ask("SELECT pg_promote()")
        time.sleep(FLUSH_SECONDS)
        before = [scans(node) for node in shop.standbys]
        time.sleep(FAULT_SECONDS)
        assert [scans(node) for node in shop.standbys] == before


def test_a_replica_takes_over_from_the_killed_primary(shop_that_fails_over):
    """Requests are refused until the promotion, and none is answered wrong afterwards."""
    shop = shop_that_fails_over
    with Readers(shop) as readers:
        readers.until_read(*shop.standbys)
        shop.pair.fail_over()
        time.sleep(FAULT_SECONDS)
        during = len(readers.counts.refused)
        time.sleep(FAULT_SECONDS)
    report("failed over", readers)
    assert readers.counts.wrong == [] and len(readers.counts.refused) == during


@pytest.mark.parametrize("with_replicas", [False, True])
def test_a_busy_admin_costs_the_primary_little(with_replicas, busy_costs):
    """Measure the primary's CPU while orders are placed, without and with operators who open pages."""
    with ReplicatedShop(with_replicas=with_replicas) as shop:
        shop.start("web")
        shop.fill(ROWS)
        if with_replicas:
            shop.until_replica_is_read()
        quiet, _ = cost_of(shop, pages=0)
        busy, pages = cost_of(shop, pages=PAGES_A_SECOND)
    busy_costs[with_replicas] = max(0.0, busy - quiet)
    print(
        f"{'with' if with_replicas else 'without'} replicas: the primary used {quiet:.2f} CPU seconds in"
        f" {MEASURED_SECONDS:g} s, and {busy:.2f} s with {pages} pages of the admin, so"
        f" {(busy - quiet) / busy:.0%} for the admin"
    )
    if with_replicas:
        assert busy_costs[True] < busy_costs[False] / 2


@pytest.fixture(scope="module")
def busy_costs() -> dict[bool, float]:
    return {}


def cost_of(shop: ReplicatedShop, *, pages: float) -> tuple[float, int]:
    """Return the primary's CPU seconds, and how many pages were opened, during some seconds of orders."""
    opened = 0
    admin = shop.admin
    began, before = time.monotonic(), cpu_seconds(shop.pair.primary)
    with Pace(ORDERS_A_SECOND, shop.place):
        for number in range(int(MEASURED_SECONDS * pages)):
            time.sleep(max(0.0, began + number / pages - time.monotonic()))
            path = BUSY_PAGES[number % len(BUSY_PAGES)]
            assert admin.get(f"http://127.0.0.1:{shop.port}/admin/{path}", timeout=30).status_code == 200
            opened += 1
        time.sleep(max(0.0, began + MEASURED_SECONDS - time.monotonic()))
        used = cpu_seconds(shop.pair.primary) - before
    return used, opened
