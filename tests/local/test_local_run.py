"""`make run` as a whole, in a copy of the checkout: it comes up, stays up, and leaves nothing behind."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from dotenv import dotenv_values

from local.machine import PROJECT, free_port
from tests.kit import kafka as brokers
from tests.kit.waiting import PATIENCE, until
from tests.local.checkout import Checkout, without_settings

pytestmark = pytest.mark.flow


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Checkout]:
    copy = Checkout(tmp_path)
    yield copy
    copy.clean_up()


def web_answers(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def listens(host: str, port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex((host, port)) == 0


def assert_every_metric_is_shown(targets: Path) -> None:
    """Scrape every process, and find each metric of docs/reference/metrics.md at one at least."""
    page = (PROJECT / "docs" / "reference" / "metrics.md").read_text()
    wanted = set(re.findall(r"^\| `(orderpost_\w+)` \| (\w+)", page, re.MULTILINE))
    shown: set[tuple[str, str]] = set()
    for process in json.loads(targets.read_text()):
        host, port = process["targets"][0].split(":")
        until(partial(listens, host, int(port)))  # the web answers before the others do
        with urllib.request.urlopen(f"http://{process['targets'][0]}/metrics", timeout=PATIENCE) as answer:
            shown.update(re.findall(r"^# TYPE (\w+) (\w+)$", answer.read().decode(), re.MULTILINE))
    assert len(wanted) > 30 and wanted <= shown


def test_it_shows_a_demo_survives_the_death_of_its_parts_and_stops_cleanly(checkout: Checkout) -> None:
    port = free_port()
    with (checkout.directory / "config" / "worker.py").open("a") as module:
        module.write("\ntime.sleep(5)\n")  # the web is ready first
    run = checkout.start(without_settings(PORT=str(port), DEMO="1"))
    checkout.wait_until_up()
    assert "ready." in (checkout.directory / "var" / "log" / "worker.log").read_text(), "an e-mail would wait"
    assert f"http://127.0.0.1:{port}/api/docs" in checkout.said()
    assert web_answers(port, "/admin/login/") == 200
    assert_every_metric_is_shown(checkout.directory / "var" / "run" / "metrics_targets.json")
    local_env = checkout.directory / "var" / "local.env"
    assert local_env.stat().st_mode & 0o777 == 0o600
    until(lambda: "correlation id demo-" in checkout.said() or checkout.has_ended())
    pages = re.findall(r"^ *(\d+)\.  \S*/", checkout.said(), re.MULTILINE)
    assert pages == [str(number) for number in range(1, 11)], checkout.said()

    parts = [
        ("config.web",),
        ("celery", "worker"),
        ("celery", "beat"),
        ("local.background",),
        ("valkey-server",),
    ]
    before = {words: checkout.pid_of(*words) for words in parts}
    with socket.create_connection(("127.0.0.1", port)) as unfinished:
        unfinished.sendall(b"GET /healthz HTTP/1.1\r\n")  # a worker that stops gracefully waits for the rest
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)
        for words, pid in before.items():
            until(partial(came_back, checkout, words, pid))
        until(lambda: web_answers(port, "/readyz") == 200)
    logs = checkout.directory / "var" / "log"
    assert "Connection in use" not in (logs / "web.log").read_text(), "its workers ended with their port"
    assert (logs / "supervisord.log").read_text().count("spawned: 'web'") == 2

    second = Checkout.__new__(Checkout)  # the same directory, started a second time
    second.directory, second.output = checkout.directory, checkout.output.with_name("second")
    assert second.start(without_settings(PORT=str(free_port()))).wait(PATIENCE) == 1
    assert f"runs already: process {run.pid}, port {port}" in second.said()

    run.terminate()
    assert run.wait(PATIENCE) == 0
    assert checkout.processes() == []
    assert not local_env.exists()


def came_back(checkout: Checkout, words: tuple[str, ...], old: int) -> bool:
    try:
        return checkout.pid_of(*words) != old
    except (LookupError, OSError):
        return False


@pytest.mark.drill
@pytest.mark.parametrize("killed", ["supervisord", "the run itself", "both at once"])
def test_nothing_is_left_when_it_is_killed_and_the_next_start_finds_its_data(
    checkout: Checkout, killed: str
) -> None:
    port = free_port()
    run = checkout.start(without_settings(PORT=str(port)))
    checkout.wait_until_up()
    url = dotenv_values(checkout.directory / "var" / "local.env")["DATABASE_URL"]
    assert url is not None
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept (word text)")

    supervisord = checkout.pid_of("supervisord")
    if killed != "the run itself":
        os.kill(supervisord, signal.SIGKILL)
    if killed != "supervisord":
        run.kill()
    run.wait(PATIENCE)
    until(lambda: checkout.processes() == [])

    checkout.start(without_settings(PORT=str(port)))
    checkout.wait_until_up()
    assert web_answers(port, "/readyz") == 200
    url = dotenv_values(checkout.directory / "var" / "local.env")["DATABASE_URL"]
    assert url is not None
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"POLL_INTERVAL": "abc"}, "POLL_INTERVAL"),
        ({"PORT": "eighty"}, "PORT must be a number"),
        ({"DATABASE_URL": "mysql://localhost/shop"}, "DATABASE_URL must be a postgresql:// URL"),
    ],
)
def test_a_bad_setting_ends_the_start_with_a_sentence(
    checkout: Checkout, setting: dict[str, str], sentence: str
) -> None:
    assert checkout.start(without_settings(PORT=str(free_port())) | setting).wait(PATIENCE) == 1
    assert sentence in checkout.said()
    assert "Traceback" not in checkout.said()
    assert checkout.processes() == []


def test_a_taken_port_is_named_with_a_way_out(checkout: Checkout) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert checkout.start(without_settings(PORT=str(port))).wait(PATIENCE) == 1
    assert f"Port {port} of 127.0.0.1 is taken" in checkout.said()
    assert "make run" in checkout.said()


@pytest.mark.drill
def test_with_a_kafka_of_its_own_events_pass_it_and_the_next_start_finds_them(checkout: Checkout) -> None:
    brokers.require()
    port = free_port()
    topics = 0
    for _ in range(2):
        run = checkout.start(without_settings(PORT=str(port), KAFKA="1"))
        checkout.wait_until_up()
        told = dotenv_values(checkout.directory / "var" / "local.env")
        assert told["EVENT_TRANSPORT"] == "kafka"
        servers = str(told["KAFKA_BOOTSTRAP_SERVERS"])
        assert f"Kafka          {servers}" in checkout.said()
        with psycopg.connect(str(told["DATABASE_URL"]), autocommit=True) as connection:
            connection.execute(WRITE)
            until(partial(all_are_published, connection))
        present = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=PATIENCE).topics
        assert len(present["order.order.placed.v1"].partitions) == 3
        assert len(present) >= topics
        topics = len(present)
        run.terminate()
        assert run.wait(PATIENCE) == 0
        assert checkout.processes() == []


def all_are_published(connection: psycopg.Connection) -> bool:
    waiting = connection.execute("SELECT count(*) FROM outbox_events WHERE published_at IS NULL")
    return waiting.fetchone() == (0,)


WRITE = """
    INSERT INTO outbox_events (id, aggregate_type, aggregate_id, event_type, version, sequence, payload,
        metadata, shard, retry_count, last_error)
    SELECT uuidv7(), 'order', uuidv7(), 'order.order.placed.v1', 1, 1, '{}', '{}', n, 0, ''
    FROM generate_series(0, 63) AS n
"""
