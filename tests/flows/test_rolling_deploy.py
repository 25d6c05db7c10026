"""A deploy under load: the baseline and this checkout next to each other, forward and back again.

The baseline migrates an empty database, and this checkout migrates it while the baseline works. In two stages
the processes that customers reach are of one of them, and all others of the other one.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from local.machine import HOST, PROJECT, free_port
from local.sandbox import WebhookSettings
from tests.kit import baseline, warm
from tests.kit.audit import expect_nothing_wrong
from tests.kit.customers import Customers
from tests.kit.listener import Listener
from tests.kit.shop import KEYS, Shop

pytestmark = pytest.mark.flow

BEFORE, NEW = "before", "new"
FRONT = ("web", "beat")
#: Without the standby, so that the worker alone sends.
BACK = ("partitions", "worker", "relay", "consumer")
ALL = (*BACK, "standby", *FRONT)
#: The processes that run in each stage of the deploy and of the way back.
STAGES: tuple[Mapping[str, Sequence[str]], ...] = (
    {BEFORE: ALL},
    {BEFORE: ALL, NEW: ALL},
    {NEW: FRONT, BEFORE: BACK},
    {NEW: ALL},
    {BEFORE: FRONT, NEW: BACK},
    {BEFORE: ALL},
)
SETTINGS = {"POLL_INTERVAL": "2", "AMBIGUOUS_HOLD_SECONDS": "15", "RETRY_BACKOFF_BASE": "1"}


class Deploy:
    """The processes of both, and the addresses for customers and for the provider's events."""

    def __init__(self, shop: Shop, before: Path) -> None:
        self.shop = shop
        self.checkouts = {BEFORE: before, NEW: PROJECT}
        self.ports = {BEFORE: shop.port, NEW: free_port()}

    def manage(self, which: str, *words: str) -> str:
        """Run a command of `manage.py` of one of them."""
        done = warm.run(
            [sys.executable, "manage.py", *words],
            environment=self.shop.environment(),
            timeout=300,
            checkout=self.checkouts[which],
        )
        done.check_returncode()
        return done.stdout

    def move_to(self, stage: Mapping[str, Sequence[str]], customers: Customers) -> None:
        """Start what the stage has, send requests to its webs, and stop what it does not have."""
        wanted = {f"{kind}:{which}": which for which, kinds in stage.items() for kind in kinds}
        for name, which in wanted.items():
            if name not in self.shop.processes:
                self.shop.start(name, port=self.ports[which], checkout=self.checkouts[which])
        customers.ports = [self.ports[which] for which, kinds in stage.items() if "web" in kinds]
        url = f"http://{HOST}:{customers.ports[-1]}/webhooks"
        self.shop.sandbox.webhooks.settings = WebhookSettings(url=url, keys=KEYS)
        for name in set(self.shop.processes) - set(wanted):
            assert self.shop.terminate(name, seconds=30), f"{name} did not exit: {self.shop.keep_logs()}"


def test_the_baseline_and_this_checkout_lose_double_and_refuse_nothing_next_to_each_other(tmp_path):
    before = baseline.unpack(tmp_path / "baseline")
    with Shop(ARCHIVE_URL=(tmp_path / "archive").as_uri(), **SETTINGS) as shop:
        deploy = Deploy(shop, before)
        baseline.empty(shop)
        deploy.manage(BEFORE, "migrate", "--verbosity", "0")
        token = deploy.manage(BEFORE, "tokens", "create", "flow", "--scope", "all").strip()
        shop.session.headers["Authorization"] = f"Bearer {token}"
        listener = Listener(url=shop.valkey.url)
        listener.start()
        with Customers(shop, rate=8, seed=1) as customers:
            for number, stage in enumerate(STAGES):
                if number == 1:
                    deploy.manage(NEW, "migrate", "--verbosity", "0")
                deploy.move_to(stage, customers)
                baseline.until_all_work(shop, customers, str(stage))
        expect_nothing_wrong(shop, customers, listener)
        assert baseline.complaints(shop) == [], shop.keep_logs()
        ended = {name: process.poll() for name, process in shop.processes.items()}
        assert set(ended.values()) == {None}, (ended, shop.keep_logs())
