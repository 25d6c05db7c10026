"""/metrics serves each metric that an app declares, and docs/reference/metrics.md explains each.

The counts of several web processes are one, also after some of them have ended.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection
from prometheus_client import Counter, Histogram, parser
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.mmap_dict import MmapedDict, mmap_key
from prometheus_client.openmetrics import parser as openmetrics

from local.machine import HOST, PROJECT, free_port
from runtime.database import server
from runtime.telemetry import metrics_files
from tests.kit import warm
from tests.kit.api import Api
from tests.kit.months import dsn
from tests.kit.waiting import PATIENCE, until
from tests.kit.words import Heartbeat, metrics


def exposed():
    answer = Api().get("/metrics")
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.fixture
def declared() -> Iterator[None]:
    """Declare a counter and a histogram for the test."""
    shipped = Counter("shop_shipped", "Orders shipped", ["carrier"], registry=metrics.REGISTRY)
    seconds = Histogram("shop_packing_seconds", "Packing", registry=metrics.REGISTRY)
    shipped.labels("post").inc(3)
    seconds.observe(0.2)
    yield
    metrics.REGISTRY.unregister(shipped)
    metrics.REGISTRY.unregister(seconds)


numbers = itertools.count(1)


@metrics.at_scrape
def parcels() -> Iterator[GaugeMetricFamily]:
    yield GaugeMetricFamily("shop_parcels", "Parcels in the hall", value=next(numbers))


@pytest.mark.django_db
def test_it_exposes_a_counter_and_a_histogram_that_an_app_declares(declared):
    text = exposed()
    assert 'shop_shipped_total{carrier="post"} 3.0' in text
    assert "shop_packing_seconds_count 1.0" in text


@pytest.mark.django_db
def test_it_reads_a_declared_gauge_at_each_scrape():
    first, second = (re.findall(r"^shop_parcels (\S+)", exposed(), re.MULTILINE) for _ in range(2))
    assert float(second[0]) == float(first[0]) + 1


#: What Prometheus 2.42 sends.
ACCEPT = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)


@pytest.mark.django_db
def test_it_speaks_openmetrics_to_who_accepts_it_with_the_same_numbers():
    answer = Api().get("/metrics", Accept=ACCEPT)
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    text = answer.content.decode()
    strict = {family.name: family.type for family in openmetrics.text_string_to_metric_families(text)}
    plain = {family.name: family.type for family in parser.text_string_to_metric_families(exposed())}
    assert len(strict) > 40 and text.endswith("# EOF\n")
    assert strict.keys() == plain.keys()


def documented() -> set[tuple[str, str, tuple[str, ...]]]:
    """Return the name, type and labels of each metric in docs/reference/metrics.md."""
    page = (PROJECT / "docs" / "reference" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(orderpost_\w+)` \| (\w+)([^|]*)\|", page, re.MULTILINE)
    return {(name, kind, tuple(sorted(re.findall(r"`(\w+)`", labels)))) for name, kind, labels in rows}


def test_it_declares_what_the_docs_list_and_nothing_else(db, valkey_url, settings):
    settings.REDIS_URL = valkey_url
    Heartbeat.beat(name="poll")
    shown, labels = set(), dict[str, set[str]]()
    for family in metrics.families(with_readers=True):
        name = family.name + "_total" * (family.type == "counter")
        if name.startswith("orderpost_"):
            shown.add((name, family.type))
            for sample in family.samples:
                labels[name] = {*sample.labels} - {"le"}
    assert shown == {(name, kind) for name, kind, _ in documented()}
    assert len(labels) > 20
    assert labels == {name: set(names) for name, _, names in documented() if name in labels}


def test_a_source_that_fails_is_asked_once_and_the_others_are_shown(db):
    asked = []

    def fail(_execute, sql, *_):
        asked.append(sql)
        raise OperationalError("away")

    with connection.execute_wrapper(fail):
        text = exposed()
    assert len(asked) == 1
    assert "orderpost_database_up 0.0" in text and 'orderpost_broker_up{broker="redis"} 1.0' in text
    assert "orderpost_breaker_state" in text and "orderpost_unfinished" not in text
    assert 'code="EmailProvidersDown"' in text and 'code="PollMissing"' not in text


def test_a_broker_that_is_away_takes_only_its_own_numbers_away(db, settings):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    text = exposed()
    assert "orderpost_database_up 1.0" in text and 'orderpost_broker_up{broker="redis"} 0.0' in text
    assert "orderpost_breaker_state" not in text and "orderpost_unfinished" in text
    assert 'code="EmailProvidersDown"' not in text and 'code="PollMissing"' in text


def scrape(port: int, **headers: str) -> str:
    request = urllib.request.Request(f"http://{HOST}:{port}/metrics", headers=headers)
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return str(answer.read().decode())


def listens(port: int, process: warm.Program) -> bool:
    assert process.poll() is None, "the process ended before it listened"
    with socket.socket() as client:
        return client.connect_ex((HOST, port)) == 0


def test_the_first_scrape_has_the_age_of_the_loop_however_late_its_writer_begins(tmp_path):
    code = (
        "from runtime.telemetry import health, metrics;"
        "health.Health.keep_writing = lambda self: None;"  # its thread has not run yet
        "health.begin('relay');"
        "print(metrics.exposition(accept='', with_readers=False)[0].decode())"
    )
    done = warm.run([sys.executable, "-c", code], environment=os.environ | {"HEALTH_DIR": str(tmp_path)})
    assert 'orderpost_loop_age_seconds{role="relay"}' in done.stdout, done.stderr


def test_a_process_without_a_web_server_shows_its_own_on_its_port_to_those_with_the_token(tmp_path):
    """It has no database and no broker to ask."""
    port = free_port()
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
        "HEALTH_DIR": str(tmp_path),
        "METRICS_HOST": HOST,
        "METRICS_PORT": str(port),
        "METRICS_TOKEN": "scrape-me",
    }
    code = (
        "import django, time; django.setup();"
        "from runtime.telemetry import metrics_server; metrics_server.watch('relay'); time.sleep(600)"
    )
    process = warm.Program([sys.executable, "-c", code], environment=environment, stdout=1, stderr=2)
    try:
        until(lambda: listens(port, process), "it listens")
        text = scrape(port, Authorization="Bearer scrape-me")
        with pytest.raises(urllib.error.HTTPError) as refused:
            scrape(port)
        assert refused.value.code == 401
        refused.value.close()
    finally:
        process.kill()
        process.wait()
    assert 'role="relay"' in text and "orderpost_build_info" in text
    assert 'orderpost_loop_age_seconds{role="relay"}' in text
    assert "orderpost_poll_duration_seconds_count" in text
    assert "orderpost_unfinished" not in text and "orderpost_database_up" not in text


COUNTS = """
import sys
from prometheus_client import CollectorRegistry, Counter, Histogram
registry = CollectorRegistry()
Counter("shop_shipped", "Shipped", ["carrier"], registry=registry).labels("post").inc(int(sys.argv[1]))
Histogram("shop_packing_seconds", "Packing", buckets=(1, 2), registry=registry).observe(1.5)
"""


def count(directory: Path, number: int) -> None:
    """Count in a process that ends."""
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(directory)}
    warm.run([sys.executable, "-c", COUNTS, str(number)], environment=environment).check_returncode()


def collected(directory: Path) -> dict[str, float]:
    """Return the collected numbers by name and labels."""
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in metrics_files.collect(directory)
        for sample in family.samples
    }


def test_the_counts_of_ended_processes_stay_and_their_files_do_not(tmp_path: Path) -> None:
    count(tmp_path, 3)
    count(tmp_path, 4)
    assert len(list(tmp_path.glob("*.db"))) == 4
    for _ in range(2):  # a second look adds nothing
        numbers = collected(tmp_path)
        assert numbers["shop_shipped_total[('carrier', 'post')]"] == 7
        assert numbers["shop_packing_seconds_count[]"] == 2
        assert numbers["shop_packing_seconds_bucket[('le', '1.0')]"] == 0
        assert numbers["shop_packing_seconds_bucket[('le', '2.0')]"] == 2
    assert sorted(file.name for file in tmp_path.glob("*.db")) == ["counter_ended.db", "histogram_ended.db"]
    count(tmp_path, 5)
    assert collected(tmp_path)["shop_shipped_total[('carrier', 'post')]"] == 12


def test_a_file_that_its_process_did_not_live_to_begin_stops_no_scrape(tmp_path: Path) -> None:
    count(tmp_path, 3)
    # prometheus-client creates a file, and gives it a length in a second step.
    empty = [tmp_path / f"counter_{process}.db" for process in (os.getpid(), 2**22 + 1)]
    for file in empty:
        file.touch()
    assert collected(tmp_path)["shop_shipped_total[('carrier', 'post')]"] == 3
    assert [file.exists() for file in empty] == [True, False]  # the first process may go on


def test_a_process_that_goes_on_keeps_its_file(tmp_path: Path) -> None:
    mine: Any = MmapedDict(str(tmp_path / f"counter_{os.getpid()}.db"))
    key = mmap_key("shop_shipped", "shop_shipped_total", ["carrier"], ["post"], "Shipped")
    mine.write_value(key, 2.0, 0.0)
    count(tmp_path, 3)
    assert collected(tmp_path)["shop_shipped_total[('carrier', 'post')]"] == 5
    mine.write_value(key, 10.0, 0.0)
    assert collected(tmp_path)["shop_shipped_total[('carrier', 'post')]"] == 13
    mine.close()


@pytest.mark.django_db(transaction=True)
def test_a_lasting_slot_that_nobody_reads_is_shown_with_what_it_keeps():
    with psycopg.connect(dsn(), autocommit=True) as session:
        session.execute("SET lock_timeout = 0")  # a slot waits for the transactions of all tests
        session.execute("SELECT pg_create_logical_replication_slot('tried_' || pg_backend_pid(), 'pgoutput')")
        session.execute("SELECT pg_create_logical_replication_slot('passing', 'pgoutput', temporary => true)")
        try:
            (slot,) = server.replication_slots()
            assert not slot.is_active
            session.execute(
                "SELECT pg_logical_emit_message(false, 'test', repeat('x', 100000)), pg_switch_wal()"
            )
            (later,) = server.replication_slots()
            assert later.kept >= slot.kept + 100_000
            text = Api().get("/metrics").content.decode()
            assert f'orderpost_replication_slot_active{{slot="{slot.name}"}} 0.0' in text
            assert f'orderpost_replication_slot_kept_bytes{{slot="{slot.name}"}}' in text
        finally:
            session.execute("SELECT pg_drop_replication_slot('tried_' || pg_backend_pid())")
