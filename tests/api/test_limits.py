"""API_RATE_LIMIT: off by default, for each token, over all processes, and never an outage of its own."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from runtime.process import counts
from tests.kit.api import Api, assert_problem, make_token, order_body, row_counts
from web.api import throttle

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def one_second(monkeypatch, valkey_url):
    """Stop the clock, so that all requests fall into the same second."""
    monkeypatch.setattr(throttle.time, "time", lambda: 1_800_000_000.5)
    monkeypatch.setattr(throttle, "KEPT_SECONDS", 600)  # Valkey's clock goes on
    monkeypatch.setattr(counts, "_away_until", 0.0)


def test_is_off_by_default_and_then_asks_nobody(monkeypatch):
    monkeypatch.setattr(counts, "_client", None)
    api = Api(make_token())
    assert {api.get("/api/v1/orders").status_code for _ in range(30)} == {200}


def test_what_is_over_the_limit_is_told_when_to_come_again_and_changes_nothing(settings):
    settings.API_RATE_LIMIT = 3
    api, other = Api(make_token()), Api(make_token())
    assert [api.get("/api/v1/orders").status_code for _ in range(3)] == [200] * 3
    before = row_counts()
    refused = api.post("/api/v1/orders", order_body(), key="k")
    assert_problem(refused, 429, "too-many-requests")
    assert refused.headers["Retry-After"] == "1"
    assert row_counts() == before
    assert other.get("/api/v1/orders").status_code == 200


def test_the_next_second_is_another(settings, monkeypatch):
    settings.API_RATE_LIMIT = 1
    api = Api(make_token())
    assert api.get("/api/v1/orders").status_code == 200
    assert api.get("/api/v1/orders").status_code == 429
    monkeypatch.setattr(throttle.time, "time", lambda: 1_800_000_001.0)
    assert api.get("/api/v1/orders").status_code == 200


def test_a_caller_without_a_token_is_refused_for_that_and_counts_for_nobody(settings):
    settings.API_RATE_LIMIT = 1
    assert [Api("op_unknown").get("/api/v1/orders").status_code for _ in range(3)] == [401] * 3


def test_nobody_is_refused_while_redis_is_away(settings, caplog):
    settings.API_RATE_LIMIT = 1
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    api = Api(make_token())
    assert [api.get("/api/v1/orders").status_code for _ in range(5)] == [200] * 5
    assert caplog.text.count("requests are not counted") == 1


def test_a_refused_request_costs_one_statement(settings):
    settings.API_RATE_LIMIT = 1
    api = Api(make_token())
    api.get("/api/v1/orders")
    with CaptureQueriesContext(connection) as captured:
        assert api.get("/api/v1/orders").status_code == 429
    assert len(captured) == 1
