"""The upgrade from 0.1.0 in containers by docs/guides/upgrade.md, and the way back, while orders come."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from local.machine import HOST, PROJECT, free_port
from local.sandbox import WebhookSettings
from outbox.telemetry.release import version
from tests.chaos.customers import Customers
from tests.chaos.listener import Listener
from tests.chaos.run import expect_nothing_wrong
from tests.docker import engine, images
from tests.docker.engine import podman
from tests.flows.shop import KEYS, Shop
from tests.flows.test_rolling_deploy import RELEASE
from tests.servers import FIXED

pytestmark = [
    pytest.mark.drill,
    pytest.mark.skipif(engine.missing() != "", reason=engine.missing() or "nothing is missing"),
]

BEFORE = "localhost/orderpost-0.1.0"
#: The Debian with Python 3.11, for which 0.1.0 was made.
OLDER = "bookworm"
#: 0.1.0's base image, which no registry has to give: that Debian, with a `python`.
BASE_BEFORE = "docker.io/library/python:3.11-slim"
#: The released image lacks a package that kombu imports, so neither its worker nor its beat starts.
REPAIRED = f"""
FROM {BEFORE}-released
USER root
RUN /venv/bin/pip install --no-cache-dir --no-deps packaging==25.0
USER orderpost
"""
MANAGE = ("python", "manage.py")
#: The commands of 0.1.0's compose.yaml.
OLD = {
    "worker": (
        *("celery", "-A", "config", "worker", "--pool", "threads"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
    ),
    "beat": ("celery", "-A", "config", "beat"),
    "standby": (*MANAGE, "drain_outbox", "--standby"),
    "relay": (*MANAGE, "relay_outbox"),
    "consumer": (*MANAGE, "consume_events"),
}
NEW = ("partitions", "web", "worker", "beat", "standby", "relay")
SECONDS = 5.0  # of each stage


@pytest.fixture(scope="module", autouse=True)
def images_of_both() -> Iterator[None]:
    with engine.alone():
        images.build()
        _build_before()
        yield


def _build_before() -> None:
    """Build 0.1.0's image by its own Dockerfile, unless it is there."""
    if engine.has_image(BEFORE):
        return
    base = f"FROM {images.make_base(OLDER)}\nRUN ln -s python3 /usr/bin/python\n"
    with tempfile.TemporaryDirectory() as folder:
        podman("build", "--tag", BASE_BEFORE, "--file", "-", folder, text=base)
        archive = ["git", "archive", "--format", "tar", "--output", f"{folder}/release.tar", RELEASE]
        done = subprocess.run(archive, cwd=PROJECT, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            pytest.skip(
                f"NOT TESTED: the release before is not in this checkout's history: {done.stderr.strip()}"
            )
        checkout = Path(folder) / "checkout"
        checkout.mkdir()
        subprocess.run(["tar", "-xf", f"{folder}/release.tar", "-C", str(checkout)], check=True, timeout=60)
        file = str(checkout / "docker" / "Dockerfile")
        options = ("--network", "host", "--format", "docker", "--pull=never")
        podman("build", *options, "--tag", f"{BEFORE}-released", "--file", file, str(checkout))
        podman("build", *options, "--tag", BEFORE, "--file", "-", folder, text=REPAIRED)


class Containers:
    """The containers of both releases on the servers of a shop whose database is empty at first."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop
        self.ports = {BEFORE: free_port(), images.IMAGE: shop.port}
        self.urls: list[str] = []

    def run(self, image: str, *words: str, **settings: str) -> str:
        """Run a command in a container of its own. Return what it printed."""
        return podman("run", "--rm", *self._options(settings), image, *words)

    def start(self, name: str, image: str, *words: str) -> None:
        """Start a container that SIGTERM to its process in the shop stops."""
        self.shop.spawn(name, ["podman", "run", "--rm", "--name", name, *self._options({}), image, *words])

    def start_before(self, *kinds: str) -> None:
        for kind in kinds:
            self.start(f"{kind}-before", BEFORE, *OLD[kind])

    def start_new(self, *kinds: str) -> None:
        for kind in kinds:
            words = ("--host", HOST, "--port", str(self.shop.port)) if kind == "web" else ()
            self.start(f"{kind}-new", images.IMAGE, kind, *words)

    def start_web_before(self) -> None:
        command = ["gunicorn", "config.wsgi:application", "--bind", f"{HOST}:{self.ports[BEFORE]}"]
        command += [
            "--worker-class",
            "gthread",
            "--workers",
            "2",
            "--threads",
            "8",
            "--graceful-timeout",
            "10",
        ]
        command += ["--no-control-socket", "--logger-class", "config.logs.GunicornLogger"]
        self.start("web-before", BEFORE, *command)

    def stop(self, *names: str) -> None:
        for name in names:
            assert self.shop.processes[name].poll() is None, (
                f"{name} has ended: {self.shop.log(name)[-3000:]}"
            )
            assert self.shop.terminate(name, seconds=40), f"{name} did not end: {self.shop.log(name)[-3000:]}"

    def serve(self, *which: str) -> None:
        """Send the requests of customers and the provider to these webs, as a load balancer does."""
        for image in which:
            answers = functools.partial(self.shop._web_answers, self.ports[image])
            self.shop.until(answers, f"{image} answers")
        self.urls[:] = [f"http://{HOST}:{self.ports[image]}" for image in which]
        self.shop.sandbox.webhooks.settings = WebhookSettings(url=f"{self.urls[-1]}/webhooks", keys=KEYS)
        time.sleep(0.5)  # requests on their way to another web arrive

    def _options(self, settings: dict[str, str]) -> list[str]:
        """Return the options of docs/guides/production.md, with the network of this host."""
        values = self.shop.environment(**settings)
        wanted = {
            name: value
            for name, value in values.items()
            if value and (name in FIXED or os.environ.get(name) != value)
        }
        return [
            *("--network", "host", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "all"),
            *("--security-opt", "no-new-privileges", "--stop-timeout", "30", "--volume", "archive:/archive"),
            *(word for name, value in wanted.items() for word in ("--env", f"{name}={value}")),
        ]


def tracebacks(log: Path) -> list[str]:
    """Return the lines with a traceback, except of tasks that 0.1.0's worker does not know."""
    lines = log.read_text(errors="replace").splitlines()
    return [line for line in lines if "Traceback" in line and "Received unregistered task" not in line]


def empty(shop: Shop) -> None:
    """Give the shop a database without tables."""
    parts = conninfo_to_dict(shop.postgres.url)
    name = parts.pop("dbname")
    with psycopg.connect(make_conninfo("", **parts, dbname="template1"), autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')
        connection.execute(f'CREATE DATABASE "{name}"')


def test_an_upgrade_by_the_page_and_back_loses_doubles_and_refuses_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in engine.environment().items():
        monkeypatch.setenv(name, value)
    with contextlib.ExitStack() as stack:
        shop = Shop(
            durable_valkey=True, POLL_INTERVAL="2", AMBIGUOUS_HOLD_SECONDS="15", RETRY_BACKOFF_BASE="1"
        )
        stack.enter_context(shop)
        stack.callback(podman, "rm", "--all", "--force", "--time", "0", "--volumes")
        empty(shop)
        both = Containers(shop)
        both.run(BEFORE, *MANAGE, "migrate", "--noinput")
        said = both.run(BEFORE, *MANAGE, "create_token", "test", "--scope", "all")
        [token] = re.findall(r"^op_\S+$", said, flags=re.MULTILINE)
        both.start_web_before()
        both.start_before(*OLD)
        both.serve(BEFORE)
        customers = Customers(urls=both.urls, token=token, redis_url=shop.valkey.url, rate=8, seed=1)
        listener = Listener(url=shop.valkey.url)
        listener.start()
        customers.start()
        time.sleep(SECONDS)

        both.run(images.IMAGE, "migrate")  # while 0.1.0 works
        time.sleep(SECONDS)
        both.start_new(*NEW)
        both.stop("consumer-before")
        both.start_new("consumer")
        both.serve(BEFORE, images.IMAGE)
        time.sleep(SECONDS)
        both.serve(images.IMAGE)
        both.stop("web-before", *(f"{kind}-before" for kind in OLD if kind != "consumer"))
        assert version() in both.run(images.IMAGE, "status")
        time.sleep(SECONDS)

        both.start_web_before()  # the way back
        both.start_before(*(kind for kind in OLD if kind != "consumer"))
        both.serve(BEFORE)
        both.stop(*(f"{kind}-new" for kind in (*NEW, "consumer")))
        both.start_before("consumer")
        time.sleep(SECONDS)
        expect_nothing_wrong(shop, customers, listener)
        assert len(customers.acknowledged) > 150
        for log in [*shop.folder.glob("*-before.log"), *shop.folder.glob("*-new.log")]:
            assert tracebacks(log) == [], shop.keep_logs()
