"""Liveness, readiness, numbers."""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from types import SimpleNamespace

import pytest
from django.db import OperationalError, connection, connections
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from operations import probes
from retention.conditions import AHEAD_ALARM
from retention.partitions.partitions import AHEAD
from tests.kit.api import Api, assert_problem, make_token
from tests.kit.mails import make_mail
from tests.kit.words import Heartbeat, id_floor


def test_healthz_is_200_and_asks_no_database():
    response = Api().get("/healthz")
    assert response.status_code == 200 and response.json() == {"status": "ok"}


def test_readyz_is_200_when_all_is_there(db):
    response = Api().get("/readyz")
    assert response.status_code == 200
    body = response.json()
    assert re.fullmatch(r"\d+ left", body["checks"].pop("connections"))
    assert body == {
        "status": "ready",
        "checks": {"database": "ok", "broker": "ok", "migrations": "ok", "partitions": "ok"},
    }


def _failing() -> dict[str, str]:
    problem = assert_problem(Api().get("/readyz"), 503, "not-ready")
    assert all(name in problem["detail"] for name in problem["failing"])
    checks = {name: result for name, result in problem["checks"].items() if name != "connections"}
    failing = {name: result for name, result in checks.items() if result != "ok"}
    assert sorted(failing) == sorted(problem["failing"])
    return failing


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_a_probe_is_answered_whatever_host_it_names(db, settings, path):
    settings.ALLOWED_HOSTS = ["orders.example.com"]
    for host in ("10.1.2.3:8000", "localhost", "", "bad host!"):
        response = Api().get(path, Host=host)
        assert response.status_code == 200, (host, response.content)
        assert response.headers["X-Correlation-ID"] and response.headers["Content-Security-Policy"]
    assert Api(make_token()).get("/api/v1/orders", Host="10.1.2.3").status_code == 400


def test_readyz_reports_a_broker_that_does_not_answer_and_stays_ready(db, settings):
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    response = Api().get("/readyz")
    assert response.status_code == 200
    assert response.json()["checks"]["broker"] == "does not answer"


def test_readyz_logs_an_error_once_an_hour_when_partitions_run_out(db, caplog, monkeypatch):
    monkeypatch.setitem(AHEAD_ALARM, "day", 7)
    now = time.monotonic()
    for hour in (1, 2):  # from now, because an earlier test may have asked in this hour
        monkeypatch.setattr(probes, "time", SimpleNamespace(monotonic=lambda at=now + 3600 * hour: at))
        for _ in range(3):
            assert Api().get("/readyz").status_code == 200
        errors = [line for line in caplog.records if "partitions run out" in str(line.msg)]
        assert len(errors) == hour and errors[-1].levelname == "ERROR"
    assert "outbox_events" in str(errors[0].msg)


def test_readyz_names_migrations_that_are_not_applied(db):
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'orders'")
    failing = _failing()
    assert list(failing) == ["migrations"]
    assert failing["migrations"].startswith("not applied: orders.0001_initial_4")


def test_readyz_names_a_table_without_its_next_partition(db):
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'outbox_events'::regclass"
            " ORDER BY 1"
        )
        names = [name for (name,) in cursor.fetchall()]
        for name in names[2:]:  # yesterday's and today's stay
            cursor.execute(f"DROP TABLE {name}")
    assert _failing() == {"partitions": "no next partition: outbox_events"}


def test_readyz_fails_while_postgres_refuses_writes_and_then_asks_over_a_new_connection(db, monkeypatch):
    closed: list[bool] = []
    monkeypatch.setattr(connections["default"], "close", lambda: closed.append(True))
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL transaction_read_only = on")
    failing = _failing()
    assert failing["database"] == "refuses writes: it is read-only"
    assert closed


@pytest.mark.parametrize("days", [-40, 40])
def test_readyz_fails_if_no_partition_takes_an_id_of_this_hosts_clock(db, monkeypatch, days):
    wrong = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
    monkeypatch.setattr(probes, "new_id", lambda: id_floor(wrong))
    text = _failing()["partitions"]
    assert text.startswith(f"no partition for this host's clock, {'+' if days > 0 else '-'}3")
    assert "outbox_events" in text


def test_readyz_fails_if_a_partition_takes_the_id_and_refuses_the_time(db, monkeypatch):
    """The partitions of events are of a day, so a clock three days ahead has one of them.

    Near the end of a month the e-mails' partition is another one, too.
    """
    wrong = dt.datetime.now(dt.UTC) + dt.timedelta(days=3)
    monkeypatch.setattr(probes, "new_id", lambda: id_floor(wrong))
    assert " from the database's: outbox_events" in _failing()["partitions"]


def test_readyz_allows_what_the_partitions_allow(db, monkeypatch):
    for hours in (-12, 12):
        wrong = dt.datetime.now(dt.UTC) + dt.timedelta(hours=hours)
        monkeypatch.setattr(probes, "new_id", lambda wrong=wrong: id_floor(wrong))
        assert Api().get("/readyz").status_code == 200


def test_readyz_names_a_database_that_does_not_answer(monkeypatch):
    def refuse():
        raise OperationalError("connection refused by 10.0.0.5")

    monkeypatch.setattr(connections["default"], "ensure_connection", refuse)
    response = Api().get("/readyz")
    problem = assert_problem(response, 503, "not-ready")
    assert "database" in problem["failing"] and "broker" not in problem["failing"]
    assert b"10.0.0.5" not in response.content


def _metrics(**headers: str) -> dict[str, float]:
    response = Api().get("/metrics", **headers)
    assert response.status_code == 200
    assert response.headers["Content-Type"].startswith("text/plain")
    lines = [line for line in response.content.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_metrics_tell_of_what_is_unfinished_due_polled_and_partitioned(db):
    make_mail(next_attempt_at=Now() - dt.timedelta(seconds=500))
    make_mail()
    for status in ("dead_lettered", "sent", "processing"):
        make_mail(status=status)
    Heartbeat.objects.create(name="poll", beat_at=Now() - dt.timedelta(seconds=30))
    numbers = _metrics()
    table = 'table="email_notifications"'
    assert numbers[f'orderpost_unfinished{{status="pending",{table}}}'] == 2
    assert numbers[f'orderpost_unfinished{{status="processing",{table}}}'] == 1
    assert numbers[f'orderpost_unfinished{{status="failed",{table}}}'] == 0
    assert numbers[f'orderpost_unfinished{{status="dead_lettered",{table}}}'] == 1
    assert numbers[f"orderpost_oldest_unfinished_seconds{{{table}}}"] < 60
    assert 30 <= numbers['orderpost_heartbeat_age_seconds{name="poll"}'] < 90
    assert numbers[f"orderpost_partitions_ahead_seconds{{{table}}}"] > (AHEAD["month"] - 1) * 28 * 86_400
    assert numbers['orderpost_partitions_ahead_seconds{table="outbox_events"}'] > (AHEAD["day"] - 1) * 86_400


def test_metrics_of_an_empty_database_have_no_poll(db):
    numbers = _metrics()
    assert not any('name="poll"' in name for name in numbers)
    assert numbers['orderpost_oldest_unfinished_seconds{table="email_notifications"}'] == 0


def test_metrics_count_no_further_than_their_limit(db, monkeypatch):
    monkeypatch.setattr("runtime.conditions.MOST", 2)
    for _ in range(3):
        make_mail()
    with CaptureQueriesContext(connection) as captured:
        assert _metrics()['orderpost_unfinished{status="pending",table="email_notifications"}'] == 2
    counts = [query["sql"] for query in captured if "dead_" in query["sql"]]
    assert (
        len(counts) == 1 and counts[0].count("LIMIT 2") == 17
    )  # rows, refused senders, events, stuck orders, posts (three times), and what holds a partition


def test_metrics_are_open_to_their_token_alone_when_one_is_set(db, settings):
    settings.METRICS_TOKEN = "scrape-me"
    for header in ({}, {"Authorization": "Bearer x"}, {"Authorization": "Basic scrape-me"}):
        response = Api().get("/metrics", **header)
        assert_problem(response, 401, "unauthenticated")
        assert response.headers["WWW-Authenticate"] == "Bearer"
    assert _metrics(Authorization="Bearer scrape-me")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_a_probe_may_use_head_but_nothing_else(db, path):
    assert Api().request("HEAD", path).status_code == 200
    assert_problem(Api().request("POST", path, {}), 405, "method-not-allowed")


def test_readiness_shows_as_json(db):
    assert json.loads(Api().get("/readyz").content)["status"] == "ready"
