"""A worker and beat outlive their broker, which goes away, changes its role, or refuses their commands."""

from __future__ import annotations

import os
import sys
import time

import pytest
import redis
from kombu.exceptions import OperationalError

from local.machine import free_port
from local.servers import EmbeddedValkey
from outbox.conditions import breakers, read_valkey
from outbox.gate.gate import Gate
from tests.kit.failover import ValkeyPair
from tests.kit.waiting import until
from tests.kit.warm import Program
from tests.ops import busy


@pytest.fixture
def broker(tmp_path):
    server = EmbeddedValkey(data=tmp_path / "valkey", port=free_port(), throwaway=True)
    server.start(log=tmp_path / "valkey.log")
    yield server
    server.stop()


@pytest.fixture
def worker(broker, tmp_path):
    """Start a Celery worker with our settings and four threads."""
    command = [sys.executable, "-m", "celery", "-A", "tests.ops.busy", "worker", "-l", "WARNING"]
    flags = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    with (tmp_path / "worker.log").open("wb") as log:
        process = Program(
            [*command, *flags],
            environment={**os.environ, "REDIS_URL": broker.url, "BUSY_DIRECTORY": str(tmp_path)},
            stdout=log.fileno(),
            stderr=log.fileno(),
        )
    yield process
    process.kill()
    process.wait()


def test_a_full_one_is_named_with_the_cure_and_stays_away_from_the_gate(broker, db, settings):
    settings.REDIS_URL = broker.url
    gate = Gate(providers=["sendgrid"], url=broker.url, rate=100, burst=10)
    assert gate.enter().provider and gate.is_shared
    with redis.Redis.from_url(broker.url) as client:
        client.config_set("maxmemory", "1")
        providers, trouble = read_valkey()
        assert trouble is not None and trouble.what == "Valkey's memory is full, and it refuses to write"
        assert "CONFIG SET maxmemory" in trouble.do and "sendgrid" in (providers or {})
        with pytest.raises(redis.exceptions.OutOfMemoryError):
            breakers()  # so that the alert fires
        until(lambda: gate.enter() and not gate.is_shared)
        for _ in range(2):  # what only reads is no sign that it writes again
            time.sleep(1.1)
            gate.read_providers()
            assert not gate.is_shared
        client.config_set("maxmemory", "0")
    until(lambda: gate.enter() and gate.is_shared)
    assert read_valkey()[1] is None


def test_a_worker_outlives_outages_of_its_broker_in_which_messages_are_not_acknowledged(
    broker, worker, tmp_path
):
    client = redis.Redis.from_url(broker.url)
    app = busy.make_app(broker.url)
    for outage in range(3):
        for number in range(6):  # four run, two are delivered and wait
            app.send_task("busy", [f"{outage}-{number}", f"go-{outage}"])
        until(lambda: not client.llen("orderpost:tasks"))
        client.shutdown(nosave=True, now=True)
        broker.stop()
        time.sleep(0.3)
        (tmp_path / f"go-{outage}").touch()  # the two are acknowledged: to a broker that is away
        time.sleep(0.3)
        assert worker.poll() is None, (tmp_path / "worker.log").read_text()
        broker.start(log=tmp_path / "valkey.log")
        app.send_task("busy", [f"after-{outage}", f"go-{outage}"])
        until(lambda at=outage: (tmp_path / f"after-{at}").exists())
    assert worker.poll() is None
    assert "EMERGENCY DUMP" not in (tmp_path / "worker.log").read_text()


@pytest.mark.parametrize("serves_stale_data", ["yes", "no"])  # READONLY for each write, MASTERDOWN for all
def test_a_worker_outlives_a_broker_that_becomes_a_replica_while_it_waits_for_a_task(
    broker, worker, tmp_path, serves_stale_data
):
    client = redis.Redis.from_url(broker.url)
    client.config_set("replica-serve-stale-data", serves_stale_data)
    app = busy.make_app(broker.url)
    (tmp_path / "go").touch()
    for change in range(2):
        app.send_task("busy", [f"before-{change}", "go"])
        until(lambda at=change: (tmp_path / f"before-{at}").exists())
        until(lambda: client.info("clients")["blocked_clients"])
        client.replicaof("127.0.0.1", str(free_port()))  # a primary that does not exist
        answers = client.info("stats")["total_error_replies"]
        until(lambda n=answers: client.info("stats")["total_error_replies"] > n or worker.poll())
        assert worker.poll() is None, (tmp_path / "worker.log").read_text()
        client.replicaof("NO", "ONE")
    app.send_task("busy", ["after", "go"])
    until(lambda: (tmp_path / "after").exists())
    assert worker.poll() is None
    assert "Frequent restarts" not in (tmp_path / "worker.log").read_text()


def test_a_process_that_enqueues_follows_the_address_to_the_replica_that_took_over(tmp_path):
    pair = ValkeyPair(folder=tmp_path)
    pair.start(log=tmp_path / "valkey.log")
    try:
        app = busy.make_app(pair.url)
        app.send_task("busy", ["1", "go"])
        pair.switch_over()
        with pytest.raises(OperationalError, match="read only replica"):
            app.send_task("busy", ["2", "go"])
        app.send_task("busy", ["3", "go"])
        with pair.primary.client() as client:
            assert client.llen("orderpost:tasks") == 2
    finally:
        pair.stop()
