"""A worker outlives its broker, whatever it was doing when the broker went away."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest
import redis

from config.local.machine import PROJECT, free_port
from config.local.servers import EmbeddedValkey
from tests.config import busy


def wait(until: Callable[[], object], *, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def broker(tmp_path):
    server = EmbeddedValkey(data=tmp_path / "valkey", port=free_port(), throwaway=True)
    server.start(log=tmp_path / "valkey.log")
    yield server
    server.stop()


@pytest.fixture
def worker(broker, tmp_path):
    """Start a Celery worker with our settings and four threads."""
    command = [sys.executable, "-m", "celery", "-A", "tests.config.busy", "worker", "-l", "WARNING"]
    flags = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    with (tmp_path / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *flags],
            cwd=PROJECT,
            env={**os.environ, "REDIS_URL": broker.url, "BUSY_DIRECTORY": str(tmp_path)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    yield process
    process.kill()
    process.wait()


def test_a_worker_outlives_outages_of_its_broker_in_which_messages_are_not_acknowledged(
    broker, worker, tmp_path
):
    client = redis.Redis.from_url(broker.url)
    app = busy.make_app(broker.url)
    for outage in range(3):
        for number in range(6):  # four run, two are delivered and wait
            app.send_task("busy", [f"{outage}-{number}", f"go-{outage}"])
        wait(lambda: not client.llen("celery"))
        client.shutdown(nosave=True, now=True)
        broker.stop()
        time.sleep(0.3)
        (tmp_path / f"go-{outage}").touch()  # the two are acknowledged: to a broker that is away
        time.sleep(0.3)
        assert worker.poll() is None, (tmp_path / "worker.log").read_text()
        broker.start(log=tmp_path / "valkey.log")
        app.send_task("busy", [f"after-{outage}", f"go-{outage}"])
        wait(lambda at=outage: (tmp_path / f"after-{at}").exists())
    assert worker.poll() is None
    assert "EMERGENCY DUMP" not in (tmp_path / "worker.log").read_text()
