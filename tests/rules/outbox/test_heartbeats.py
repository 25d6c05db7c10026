"""A heartbeat is written now and then, and no process stops because the database is away."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace

import pytest
from django.db import OperationalError
from django.db.models.functions import Now

from outbox.management.commands import consume_cdc
from tests.kit.waiting import replace_time
from tests.kit.words import Heartbeat, heartbeat, new_id

pytestmark = pytest.mark.django_db


def test_it_is_written_at_once_and_then_not_with_every_round(django_assert_num_queries):
    name = str(new_id())
    with django_assert_num_queries(1):
        for _ in range(100):
            Heartbeat.beat(name=name, every=3600.0)
    with django_assert_num_queries(3):
        Heartbeat.beat(name=name, every=1e-9)
        Heartbeat.beat(name=name)
        Heartbeat.beat(name=name)


def test_a_gap_starts_its_time_anew():
    Heartbeat.beat(name="web")
    Heartbeat.objects.update(since=Now() - dt.timedelta(seconds=1000))
    Heartbeat.beat(name="web")
    assert Heartbeat.seconds_without_gap(name="web") == pytest.approx(1000, abs=60)
    Heartbeat.objects.update(beat_at=Now() - dt.timedelta(seconds=60))
    assert Heartbeat.seconds_without_gap(name="web") is None
    Heartbeat.beat(name="web")
    assert Heartbeat.seconds_without_gap(name="web") == pytest.approx(0, abs=60)


def test_a_wake_up_needs_no_database(monkeypatch):
    def away(*, name, every):
        raise OperationalError(name)

    monkeypatch.setattr(Heartbeat, "beat", away)
    monkeypatch.setattr(consume_cdc.connections, "close_all", lambda: None)
    consume_cdc.beat()


def test_the_web_process_logs_once_that_the_database_is_away(monkeypatch, caplog):
    class Slept(Exception):
        pass

    away = [OperationalError("one"), OperationalError("two"), None, OperationalError("three"), Slept()]
    outcomes = iter(away)

    def beat(*, name: str) -> None:
        if (outcome := next(outcomes)) is not None:
            raise outcome

    monkeypatch.setattr(Heartbeat, "beat", beat)
    replace_time(monkeypatch, heartbeat, sleep=lambda _: None)
    monkeypatch.setattr(heartbeat, "connection", SimpleNamespace(close=lambda: None))
    with pytest.raises(Slept):
        heartbeat.beat_forever()
    assert [record.msg["error"] for record in caplog.records] == ["one", "three"]
