"""/metrics serves each metric that an app declares, and docs/reference/metrics.md explains each."""

from __future__ import annotations

import re
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from django.apps import apps
from django.db import OperationalError, connection
from django.utils.module_loading import module_has_submodule
from prometheus_client import Counter, Histogram, parser
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics import parser as openmetrics

from local.machine import HOST, PROJECT, free_port
from outbox.telemetry import metrics_server
from tests.kit.api import Api
from tests.kit.words import Heartbeat, health, metrics


def exposed():
    answer = Api().get("/metrics")
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.fixture
def clean_registry(monkeypatch):
    monkeypatch.setattr(metrics, "REGISTRY", metrics.CollectorRegistry(auto_describe=False))
    monkeypatch.setattr(metrics, "_readers", list(metrics._readers))


@pytest.mark.django_db
def test_it_exposes_a_counter_and_a_histogram_that_an_app_declares(clean_registry):
    shipped = Counter("shop_shipped", "Orders shipped", ["carrier"], registry=metrics.REGISTRY)
    seconds = Histogram("shop_packing_seconds", "Packing", registry=metrics.REGISTRY)
    shipped.labels("post").inc(3)
    seconds.observe(0.2)
    text = exposed()
    assert 'shop_shipped_total{carrier="post"} 3.0' in text
    assert "shop_packing_seconds_count 1.0" in text


@pytest.mark.django_db
def test_it_reads_a_declared_gauge_at_each_scrape(clean_registry):
    numbers = iter([1, 2])

    @metrics.at_scrape
    def parcels():
        yield GaugeMetricFamily("shop_parcels", "Parcels in the hall", value=next(numbers))

    assert "shop_parcels 1.0" in exposed()
    assert "shop_parcels 2.0" in exposed()


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


def test_it_imports_the_metrics_of_every_app_at_the_start():
    declared = [app.name for app in apps.get_app_configs() if module_has_submodule(app.module, "metrics")]
    assert "outbox" in declared
    assert all(f"{name}.metrics" in sys.modules for name in declared)


def documented() -> set[tuple[str, str, tuple[str, ...]]]:
    """Return the name, type and labels of each metric in docs/reference/metrics.md."""
    page = (PROJECT / "docs" / "reference" / "metrics.md").read_text()
    rows = re.findall(r"^\| `(orderpost_\w+)` \| (\w+)([^|]*)\|", page, re.MULTILINE)
    return {(name, kind, tuple(sorted(re.findall(r"`(\w+)`", labels)))) for name, kind, labels in rows}


def test_it_declares_what_the_docs_list_and_nothing_else(db, valkey_url, settings):
    settings.REDIS_URL = valkey_url
    Heartbeat.beat(name="poll")
    declared = set()
    for family in metrics.families(with_readers=True):
        name = family.name + "_total" * (family.type == "counter")
        labels = getattr(family, "_labelnames", None)
        if labels is None:  # a counter or histogram: its samples have the labels, if there is one
            labels = metrics.REGISTRY._names_to_collectors[family.name]._labelnames
        declared.add((name, family.type, tuple(sorted(labels))))
    assert len(declared) > 40
    assert {one for one in declared if one[0].startswith("orderpost_")} == documented()


def test_a_source_that_fails_is_asked_once_and_the_others_are_shown(clean_registry, db):
    asked = []

    def failing(read):
        def read_database():
            asked.append(read)
            raise OperationalError("away")

        return read_database

    metrics._readers[:] = [
        (source, failing(read) if source == "database" else read) for source, read in metrics._readers
    ]
    text = exposed()
    assert len(asked) == 1
    assert "orderpost_database_up 0.0" in text and 'orderpost_broker_up{broker="redis"} 1.0' in text
    assert "orderpost_breaker_state" in text and "orderpost_unfinished" not in text


def test_a_broker_that_is_away_takes_only_its_own_numbers_away(db, settings):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    text = exposed()
    assert "orderpost_database_up 1.0" in text and 'orderpost_broker_up{broker="redis"} 0.0' in text
    assert "orderpost_breaker_state" not in text and "orderpost_unfinished" in text


@pytest.fixture
def port(settings, monkeypatch, tmp_path) -> Iterator[int]:
    """Serve this process's metrics as a relay does."""
    settings.METRICS_HOST, settings.METRICS_PORT = HOST, free_port()
    monkeypatch.setenv("HEALTH_DIR", str(tmp_path))
    monkeypatch.setattr(health, "_begun", [])
    monkeypatch.setattr(metrics_server._Server, "started", False)
    before = health._of_thread.set(None)
    metrics_server.watch("relay")
    yield settings.METRICS_PORT
    health._of_thread.reset(before)


def scrape(port: int, **headers: str) -> str:
    request = urllib.request.Request(f"http://{HOST}:{port}/metrics", headers=headers)
    for _ in range(100):
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError:
            raise
        except OSError:  # the thread has not begun to listen
            threading.Event().wait(0.05)
    raise AssertionError("no metrics")


def test_the_first_scrape_has_the_age_of_the_loop_however_late_its_writer_begins(monkeypatch, tmp_path):
    monkeypatch.setenv("HEALTH_DIR", str(tmp_path))
    monkeypatch.setattr(health, "_begun", [])
    monkeypatch.setattr(health.Health, "keep_writing", lambda self: None)  # its thread has not run yet
    before = health._of_thread.set(None)
    health.begin("relay")
    health._of_thread.reset(before)
    assert (
        'orderpost_loop_age_seconds{role="relay"}'
        in metrics.exposition(accept="", with_readers=False)[0].decode()
    )


def test_a_process_without_a_web_server_shows_its_own_on_its_port(port, settings):
    with connection.execute_wrapper(lambda *_: pytest.fail("it asked the database")):
        text = scrape(port)
    assert 'role="relay"' in text and "orderpost_build_info" in text
    assert 'orderpost_loop_age_seconds{role="relay"}' in text
    assert "orderpost_poll_duration_seconds_count" in text
    assert "orderpost_unfinished" not in text
    settings.METRICS_TOKEN = "scrape-me"
    with pytest.raises(urllib.error.HTTPError) as refused:
        scrape(port)
    assert refused.value.code == 401
    refused.value.close()
    assert scrape(port, Authorization="Bearer scrape-me")
