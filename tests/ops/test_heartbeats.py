"""A heartbeat is the time at which a process last did its work."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db.models.functions import Now

from tests.kit.words import Heartbeat


@pytest.mark.django_db
def test_a_heartbeat_is_one_row_that_moves():
    Heartbeat.objects.create(name="poll", beat_at=Now() - dt.timedelta(days=1))
    Heartbeat.beat(name="poll")
    age = Heartbeat.read_age(name="poll")
    assert Heartbeat.objects.count() == 1
    assert age is not None and age < 60
