"""The upgrade from the baseline in containers by the page, the way back, and the upgrade again.

Meanwhile orders come, and the posts of two connected shops. The baseline has no Saleor: it must refuse these
posts, which Saleor repeats, and leave those that wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from local.machine import HOST, free_port
from local.sandbox import WebhookSettings
from tests.drills import engine, images
from tests.drills.engine import podman
from tests.flows.test_connections import BEHIND, PLACE, SETTINGS, Fake, compare, connect, go_on, send
from tests.kit import baseline
from tests.kit.audit import expect_nothing_wrong
from tests.kit.constants import NAMES, VARIABLE
from tests.kit.customers import Customers
from tests.kit.http import serve
from tests.kit.listener import Listener
from tests.kit.roles import RUNNING
from tests.kit.saleor import FakeSaleor
from tests.kit.servers import FIXED
from tests.kit.shop import KEYS, PATIENT, Shop
from tests.kit.waiting import PATIENCE
from tests.kit.woocommerce import FakeShop, Post
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


class ConnectedShop:
    """A shop whose orders change all the time, and which posts to the customers' webs."""

    #: Seconds between two changes, and so many posts show that a stage works.
    PAUSE_SECONDS, ENOUGH = 0.5, 20

    def __init__(self, fake: Fake, *, source: str, shop: Shop, customers: Customers) -> None:
        self.fake, self.source, self.shop, self.customers = fake, source, shop, customers
        self.answers: Counter[int] = Counter()
        self.refused: list[Post] = []
        self._path = f"/connect/{source}"
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._live)
        fake.now -= BEHIND

    @contextlib.contextmanager
    def connected(self) -> Iterator[ConnectedShop]:
        """Connect it, in a Saleor by the installation of the app, and let it live."""
        with serve(self._answer) as self.fake.address:
            if isinstance(self.fake, FakeSaleor):
                self._install(self.fake)
            else:
                connect(self.shop, self.fake, self.fake.address, source=self.source)
            self._thread.start()
            try:
                yield self
            finally:
                self._end()

    def _install(self, saleor: FakeSaleor) -> None:
        nothing = {"api_key": "", "api_secret": "", "installation": "{}"}
        connect(self.shop, saleor, saleor.address, source=self.source, **nothing)
        url = f"http://{HOST}:{self.customers.ports[0]}{self._path}/{PLACE}/manifest"
        manifest = requests.get(url, timeout=PATIENCE).json()
        token = {"auth_token": saleor.token}
        answer = requests.post(manifest["tokenTargetUrl"], json=token, timeout=PATIENCE)
        assert answer.status_code == 200, answer.text
        self._path = urlsplit(manifest["webhooks"][0]["targetUrl"]).path

    def _answer(self, *request: Any) -> tuple[int, bytes, dict[str, str]]:
        with self._lock:  # no answer has half a change
            status, document, headers = self.fake.answer(*request)
            return status, json.dumps(document).encode(), headers

    def _live(self) -> None:
        lives: list[Iterator[str]] = []
        chance = random.Random(1)
        while not self._stop.wait(self.PAUSE_SECONDS):
            with self._lock:
                go_on(self.fake, lives, chance)
                posts = self.fake.deliveries()
            for post in posts:
                for _ in range(2 if chance.random() < 0.1 else 1):
                    self._post(post)

    def _post(self, post: Post) -> None:
        ports = self.customers.ports
        status = send(post, port=ports[self.answers.total() % len(ports)], path=self._path)
        self.answers[status] += 1
        if status != 202:
            self.refused.append(post)

    def _end(self) -> None:
        self._stop.set()
        self._thread.join()

    def until_works(self, stage: str) -> None:
        enough = self._states()["done"] + self.ENOUGH
        self.shop.until(lambda: self._states()["done"] >= enough, f"posts of {self.source} are done: {stage}")

    def until_refused(self) -> None:
        enough = len(self.refused) + self.ENOUGH
        self.shop.until(lambda: len(self.refused) >= enough, f"posts of {self.source} are refused")

    def expect_all(self) -> None:
        """End its life, repeat what was refused, and check that nothing of it is lost or doubled."""
        self._end()
        refused, self.refused = self.refused, []
        for post in refused:
            self._post(post)
        assert self.refused == []
        taken = Counter(done=self.answers[202])
        self.shop.until(lambda: self._states() == taken, f"all posts of {self.source} are done: {taken}")
        compare(self.shop, self.fake, source=self.source)

    def _states(self) -> Counter[str]:
        """Count its posts by state, without what a comparison read."""
        posts = f"connection_posts WHERE source = '{self.source}' AND NOT is_history AND state <> 'missing'"
        return Counter(dict(self.shop.query(f"SELECT state, count(*) FROM {posts} GROUP BY state")))


def test_an_upgrade_by_the_page_and_back_loses_doubles_and_refuses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in engine.environment().items():
        monkeypatch.setenv(name, value)
    with contextlib.ExitStack() as stack:
        shop = stack.enter_context(Shop(POLL_INTERVAL="2", RETRY_BACKOFF_BASE="1", **PATIENT, **SETTINGS))
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

            def connect_shop(fake: Fake, source: str) -> ConnectedShop:
                connected = ConnectedShop(fake, source=source, shop=shop, customers=customers)
                return stack.enter_context(connected.connected())

            def until_all_work(stage: str, *shops: ConnectedShop) -> None:
                baseline.until_all_work(shop, customers, stage)
                for each in shops:
                    each.until_works(stage)

            both.serve(customers, BEFORE)
            woocommerce = connect_shop(FakeShop(), "woocommerce")
            until_all_work("before the upgrade", woocommerce)
            both.run(NEW, "migrate")
            until_all_work("after migrate", woocommerce)
            both.start(NEW)
            both.serve(customers, BEFORE, NEW)
            until_all_work("next to each other", woocommerce)
            both.serve(customers, NEW)
            both.stop(BEFORE)
            assert version() in both.run(NEW, "status")
            saleor = connect_shop(FakeSaleor(source="saleor"), "saleor")
            until_all_work("after the upgrade", woocommerce, saleor)
            assert saleor.refused == []

            both.start(BEFORE)
            both.serve(customers, BEFORE)
            both.stop(NEW)
            until_all_work("on the way back", woocommerce)
            saleor.until_refused()

            both.start(NEW)
            both.serve(customers, NEW)
            both.stop(BEFORE)
            until_all_work("after the upgrade again", woocommerce, saleor)
        assert set(woocommerce.answers) == {202}
        assert set(saleor.answers) == {202, 503}
        woocommerce.expect_all()
        saleor.expect_all()
        expect_nothing_wrong(shop, customers, listener)
        assert baseline.complaints(shop) == [], shop.keep_logs()
