"""A trigger's heartbeat is written now and then, and a database that is away stops no trigger."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from notifications.management.commands import consume_cdc
from tests.kit.words import Heartbeat, pulse

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _never_beat(monkeypatch):
    monkeypatch.setattr(Heartbeat, "_beat_at", {})


def test_it_is_written_at_once_and_then_not_with_every_round():
    with CaptureQueriesContext(connection) as written:
        for _ in range(100):
            Heartbeat.beat(name="cdc", every=5.0)
        assert len(written) == 1
        Heartbeat._beat_at["cdc"] -= 5.0
        Heartbeat.beat(name="cdc", every=5.0)
        assert len(written) == 2
        Heartbeat.beat(name="poll")
        Heartbeat.beat(name="poll")
        assert len(written) == 4


def test_a_database_that_is_away_is_no_error(monkeypatch):
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
    monkeypatch.setattr(pulse.time, "sleep", lambda _: None)
    monkeypatch.setattr(pulse, "connection", SimpleNamespace(close=lambda: None))
    with pytest.raises(Slept):
        pulse.pulse()
    assert [record.msg["error"] for record in caplog.records] == ["one", "three"]
