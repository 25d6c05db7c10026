"""The command that needs no broker: when the standby acts, and when it keeps quiet."""

from __future__ import annotations

import datetime as dt
import time

import pytest
from django.db.models.functions import Now

from notifications.management.commands.drain_outbox import _nobody_polls
from outbox.models import Heartbeat

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(("age", "acts"), [(0, False), (119, False), (121, True), (90_000, True)])
def test_the_standby_acts_once_the_last_poll_is_older_than_two_intervals(settings, age, acts):
    settings.POLL_INTERVAL = 60.0
    Heartbeat.objects.create(name="poll", beat_at=Now() - dt.timedelta(seconds=age))
    assert _nobody_polls(since=time.monotonic()) is acts


@pytest.mark.parametrize(("runs_for", "acts"), [(119, False), (121, True)])
def test_where_nobody_ever_polled_the_standby_acts_two_intervals_after_its_start(settings, runs_for, acts):
    settings.POLL_INTERVAL = 60.0
    assert _nobody_polls(since=time.monotonic() - runs_for) is acts


def test_a_heartbeat_is_one_row_that_moves():
    Heartbeat.objects.create(name="poll", beat_at=Now() - dt.timedelta(days=1))
    Heartbeat.beat(name="poll")
    age = Heartbeat.read_age(name="poll")
    assert Heartbeat.objects.count() == 1
    assert age is not None and age < 60
