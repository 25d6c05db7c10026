"""The upgrade from the baseline in containers by the page, and the way back, while orders come."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

import pytest

from local.machine import HOST, free_port
from local.sandbox import WebhookSettings
from tests.drills import engine, images
from tests.drills.engine import podman
from tests.kit import baseline
from tests.kit.audit import expect_nothing_wrong
from tests.kit.constants import NAMES, VARIABLE
from tests.kit.customers import Customers
from tests.kit.listener import Listener
from tests.kit.roles import RUNNING
from tests.kit.servers import FIXED
from tests.kit.shop import KEYS, Shop
from tests.kit.words import version

pytestmark = [
    pytest.mark.drill,
    pytest.mark.skipif(engine.missing() != "", reason=engine.missing() or "nothing is missing"),
]

BEFORE, NEW = f"localhost/orderpost-{baseline.commit()[:12]}", images.IMAGE
#: Partitions first, as the page says.
ROLES = sorted(RUNNING, key=lambda role: role != "partitions")


@pytest.fixture(scope="module", autouse=True)
def images_of_both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    checkout = baseline.unpack(tmp_path_factory.mktemp("baseline") / "checkout")
    with engine.alone():
        images.build()
        if not engine.has_image(BEFORE):
            build = ("make", "-C", str(checkout), "image", "ENGINE=podman", f"BASE={images.BASE}")
            engine.run(*build, f"TAG={BEFORE}", "ARGS=--network host")
        yield


class Containers:
    """The containers of both, on the servers of a shop."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.ports = {BEFORE: shop.port, NEW: free_port()}

    def run(self, image: str, *words: str) -> str:
        """Run a command in a container of its own, and return its output."""
        return podman("run", "--rm", *self._options(), image, *words)

    def start(self, image: str) -> None:
        """Start a container of each role. SIGTERM to its process in the shop stops it."""
        for role in ROLES:
            words = ("--host", HOST, "--port", str(self.ports[image])) if role == "web" else ()
            name = self._name(role, image)
            options = ("--rm", "--name", name, *self._options())
            self.shop.spawn(name, ["podman", "run", *options, image, role, *words])
        port = self.ports[image]
        self.shop.until(lambda: self.shop.web_answers(port), f"{image} answers")

    def stop(self, image: str) -> None:
        for role in ROLES:
            name = self._name(role, image)
            assert self.shop.processes[name].poll() is None, f"{name} ended: {self.shop.log(name)[-3000:]}"
            assert self.shop.terminate(name, seconds=60), f"{name} runs on: {self.shop.log(name)[-3000:]}"

    def serve(self, customers: Customers, *which: str) -> None:
        """Send the requests of customers and the provider to these webs, as a load balancer does."""
        customers.ports = [self.ports[image] for image in which]
        url = f"http://{HOST}:{customers.ports[-1]}/webhooks"
        self.shop.sandbox.webhooks.settings = WebhookSettings(url=url, keys=KEYS)

    def _name(self, role: str, image: str) -> str:
        return f"{role}-{'before' if image == BEFORE else 'new'}"

    def _options(self) -> list[str]:
        """Return the options of docs/guides/production.md, with the network of this host."""
        # The images contain no module of the tests, so they have the constants as shipped.
        ours = {"DJANGO_SETTINGS_MODULE", VARIABLE, *NAMES}
        wanted = {
            name: value
            for name, value in self.shop.environment().items()
            if value and name not in ours and (name in FIXED or os.environ.get(name) != value)
        }
        return [
            *("--network", "host", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "all"),
            *("--security-opt", "no-new-privileges", "--stop-timeout", "30", "--volume", "archive:/archive"),
            *(word for name, value in wanted.items() for word in ("--env", f"{name}={value}")),
        ]


def test_an_upgrade_by_the_page_and_back_loses_doubles_and_refuses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in engine.environment().items():
        monkeypatch.setenv(name, value)
    with contextlib.ExitStack() as stack:
        shop = stack.enter_context(Shop(POLL_INTERVAL="2", RETRY_BACKOFF_BASE="1"))
        stack.callback(podman, "rm", "--all", "--force", "--time", "0", "--volumes")
        baseline.empty(shop)
        both = Containers(shop)
        both.run(BEFORE, "migrate")
        said = both.run(BEFORE, "tokens", "create", "test", "--scope", "all")
        [token] = re.findall(r"^op_\S+$", said, flags=re.MULTILINE)
        shop.session.headers["Authorization"] = f"Bearer {token}"
        both.start(BEFORE)
        listener = Listener(url=shop.valkey.url)
        listener.start()
        with Customers(shop, rate=8, seed=1, ports=[both.ports[BEFORE]]) as customers:
            both.serve(customers, BEFORE)
            baseline.until_all_work(shop, customers, "before the upgrade")
            both.run(NEW, "migrate")
            baseline.until_all_work(shop, customers, "after migrate")
            both.start(NEW)
            both.serve(customers, BEFORE, NEW)
            baseline.until_all_work(shop, customers, "next to each other")
            both.serve(customers, NEW)
            both.stop(BEFORE)
            assert version() in both.run(NEW, "status")
            baseline.until_all_work(shop, customers, "after the upgrade")

            both.start(BEFORE)
            both.serve(customers, BEFORE)
            both.stop(NEW)
            baseline.until_all_work(shop, customers, "on the way back")
        expect_nothing_wrong(shop, customers, listener)
        assert baseline.complaints(shop) == [], shop.keep_logs()
