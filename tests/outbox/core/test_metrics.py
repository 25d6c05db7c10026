"""Whatever an app declares in its metrics.py is on /metrics."""

from __future__ import annotations

import sys

import pytest
from django.apps import apps
from django.utils.module_loading import module_has_submodule
from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily

from outbox.core import metrics
from tests.api.conftest import Api


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


def test_it_imports_the_metrics_of_every_app_at_the_start():
    declared = [app.name for app in apps.get_app_configs() if module_has_submodule(app.module, "metrics")]
    assert "outbox" in declared
    assert all(f"{name}.metrics" in sys.modules for name in declared)
