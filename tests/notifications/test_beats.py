"""A trigger's heartbeat is written now and then, and a database that is away stops no trigger."""

from __future__ import annotations

import pytest
from django.db import OperationalError

from notifications.delivery import beats
from notifications.delivery.beats import Beats
from outbox.models import Heartbeat

pytestmark = pytest.mark.django_db


@pytest.fixture
def written(monkeypatch) -> list[str]:
    """Gather the heartbeats that are written."""
    names: list[str] = []
    monkeypatch.setattr(Heartbeat, "beat", lambda *, name: names.append(name))
    return names


def test_it_is_written_at_once_and_then_not_with_every_round(written, monkeypatch):
    one = Beats("cdc")
    for _ in range(100):
        one.beat()
    assert written == ["cdc"]
    monkeypatch.setattr(beats, "BEAT_SECONDS", 0.0)
    one.beat()
    assert written == ["cdc"] * 2


def test_a_database_that_is_away_is_no_error(monkeypatch):
    def away(*, name):
        raise OperationalError(name)

    monkeypatch.setattr(Heartbeat, "beat", away)
    monkeypatch.setattr(beats.connections, "close_all", lambda: None)
    Beats("follower").beat()
