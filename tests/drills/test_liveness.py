"""The chart's liveness probe restarts no web pod during an outage of the database under load."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import requests

from local.machine import HOST, PROJECT
from tests.kit.chart import CHART
from tests.kit.servers import frozen
from tests.kit.shop import Shop

pytestmark = [pytest.mark.flow, pytest.mark.drill]

FROZEN_SECONDS, REQUESTS_PER_SECOND, PATIENCE_OF_CLIENTS = 120.0, 50, 10.0
PERIOD, HTTP_TIMEOUT = 10.0, 5.0
#: So many failures in a row, and Kubernetes restarts the container.
FAILURE_THRESHOLD = 3


@contextmanager
def load(shop: Shop, *, path: str) -> Iterator[list[str]]:
    """Send requests at a steady rate, whatever becomes of earlier ones; yield each answer's status."""
    answers: list[str] = []
    stopped = threading.Event()
    token = shop.session.headers["Authorization"]
    request = f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nAuthorization: {token!s}\r\nConnection: close\r\n\r\n"

    async def send() -> None:
        try:
            async with asyncio.timeout(PATIENCE_OF_CLIENTS):
                reader, writer = await asyncio.open_connection(HOST, shop.port)
                try:
                    writer.write(request.encode())
                    answers.append((await reader.readline()).decode().split(" ")[1])
                finally:
                    writer.close()
        except (OSError, TimeoutError, IndexError) as error:
            answers.append(type(error).__name__)

    async def send_all() -> None:
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in itertools.count():
                if stopped.is_set():
                    return
                group.create_task(send())
                await asyncio.sleep(max(0.0, began + number / REQUESTS_PER_SECOND - time.monotonic()))

    thread = threading.Thread(target=asyncio.run, args=[send_all()])
    thread.start()
    try:
        yield answers
    finally:
        stopped.set()
        thread.join()


def chart_command() -> list[str]:
    """Return the command of web's liveness probe, with this Python in place of the image's."""
    template = (CHART / "templates" / "_pod.tpl").read_text()
    match = re.search(
        r'\$command := printf "\[python, (.+), %s\]" \(\.role\.health \| default \.name\)', template
    )
    assert match and "exec: {command: {{ $command }}}" in template
    return [sys.executable, *match[1].split(", "), "web"]


def healthz_answers(shop: Shop) -> bool:
    try:
        return requests.get(f"http://{HOST}:{shop.port}/healthz", timeout=HTTP_TIMEOUT).ok
    except requests.RequestException:
        return False


def longest_run_of_failures(outcomes: list[bool]) -> int:
    return max((len(list(run)) for good, run in itertools.groupby(outcomes) if not good), default=0)


def test_a_frozen_database_under_load_fails_no_probe_of_the_chart() -> None:
    with Shop(DATABASE_TIMEOUT="4") as shop:
        health = str(shop.folder / "health")
        shop.start("web", HEALTH_DIR=health)
        order = shop.place()
        by_command: list[bool] = []
        by_request: list[bool] = []
        with load(shop, path=f"/api/v1/orders/{order}") as answers:
            shop.until(lambda: answers.count("200") > REQUESTS_PER_SECOND, "the load is served")
            with frozen(shop.postgres):
                until = time.monotonic() + FROZEN_SECONDS
                while time.monotonic() < until:
                    began = time.monotonic()
                    done = subprocess.run(
                        chart_command(),
                        cwd=PROJECT,
                        env=os.environ | {"HEALTH_DIR": health},
                        capture_output=True,
                    )
                    by_command.append(done.returncode == 0)
                    by_request.append(healthz_answers(shop))
                    time.sleep(max(0.0, began + PERIOD - time.monotonic()))
            shop.until(lambda: answers[-REQUESTS_PER_SECOND:] == ["200"] * REQUESTS_PER_SECOND, "it recovers")
        assert all(by_command) and len(by_command) >= FAILURE_THRESHOLD
        assert longest_run_of_failures(by_request) >= FAILURE_THRESHOLD, by_request
        assert shop.processes["web"].poll() is None
