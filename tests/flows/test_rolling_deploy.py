"""A deploy under load: the release before and this one side by side, forward and back again.

Both work on one database, migrated by this release, and on one Valkey. `RELEASE` is the one that is in use.
"""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from local.machine import HOST, PROJECT, free_port
from local.sandbox import WebhookSettings
from tests.chaos.customers import Customers
from tests.chaos.listener import Listener
from tests.chaos.run import expect_nothing_wrong
from tests.flows.shop import KEYS, Shop

pytestmark = pytest.mark.flow

RELEASE = "1be9467143cb323998f8242d2af77b63c778077d"  # 0.1.0
KINDS = ("web", "worker", "beat", "standby", "relay", "consumer")
SECONDS = 2.0  # of each stage
SETTINGS = {"POLL_INTERVAL": "2", "AMBIGUOUS_HOLD_SECONDS": "15", "RETRY_BACKOFF_BASE": "1"}


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Return a checkout of the release before."""
    archive = tmp_path / "release.tar"
    command = ["git", "archive", "--format", "tar", "--output", str(archive), RELEASE]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        pytest.skip(
            f"NOT TESTED: the release before is not in this checkout's history: {done.stderr.strip()}"
        )
    checkout = tmp_path / "release"
    checkout.mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(checkout)], check=True, timeout=60)
    return checkout


class Deploy:
    """Starts and stops each release's processes, and tells customers and the provider where the web is."""

    def __init__(self, shop: Shop, release: Path) -> None:
        self.shop = shop
        self.checkouts = {"before": release, "new": PROJECT}
        self.ports = {"before": free_port(), "new": shop.port}
        self.urls: list[str] = []

    def url(self, which: str) -> str:
        return f"http://{HOST}:{self.ports[which]}"

    def start(self, which: str) -> None:
        names = [f"{kind}:{which}" for kind in KINDS]
        self.shop.start(*names, port=self.ports[which], checkout=self.checkouts[which])
        self._serve(*self.urls, self.url(which))

    def stop(self, which: str) -> None:
        self._serve(*(url for url in self.urls if url != self.url(which)))
        time.sleep(0.5)  # what a load balancer does: no new requests first
        for kind in KINDS:
            assert self.shop.terminate(f"{kind}:{which}", seconds=30), f"{kind} of {which} did not end"

    def _serve(self, *urls: str) -> None:
        self.urls[:] = urls
        self.shop.sandbox.webhooks.settings = WebhookSettings(url=f"{urls[-1]}/webhooks", keys=KEYS)


def test_two_releases_side_by_side_lose_double_and_refuse_nothing_forward_and_back(release):
    with Shop(durable_valkey=True, **SETTINGS) as shop:
        deploy = Deploy(shop, release)
        deploy.start("before")
        token = str(shop.session.headers["Authorization"]).partition(" ")[2]
        customers = Customers(urls=deploy.urls, token=token, redis_url=shop.valkey.url, rate=8, seed=1)
        listener = Listener(url=shop.valkey.url)
        listener.start()
        customers.start()
        time.sleep(SECONDS)
        for coming, going in (("new", "before"), ("before", "new")):
            deploy.start(coming)
            time.sleep(SECONDS)
            deploy.stop(going)
            time.sleep(SECONDS)
        expect_nothing_wrong(shop, customers, listener)
        assert len(customers.acknowledged) > 100
        assert shop.query("SELECT count(*) > 50 FROM email_notifications WHERE delivered_at IS NOT NULL") == [
            (True,)
        ], "the provider's events arrive, too"
        for name in (f"{kind}:{which}" for kind in KINDS for which in deploy.ports):
            assert "Traceback" not in shop.log(name), (name, shop.keep_logs())
