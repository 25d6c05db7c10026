"""What `make soak` decides by: that growth is seen, that aged rows come back; and that the programs start."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import uuid

import pytest
from django.db import connection

from local.machine import PROJECT
from tests.kit.words import id_time, new_id
from tests.soak import calendar
from tests.soak.samples import GROWN, MB, Sample, Trend, trends

DAY = 480.0


def week(*, daily: float = 0.0, noise: float = 0.0, restarts: bool = False) -> list[Sample]:
    """Return samples of a worker that begins with 100 MB and grows by `daily` MB a day."""
    chance = random.Random(1)
    found = []
    for number in range(1, int(7 * DAY / 30)):
        at = number * 30.0
        pss = 100 + daily * at / DAY + chance.uniform(-noise, noise)
        age = at % DAY if restarts else at
        found.append(Sample(at, {"worker": {"pss": (30 if age < GROWN else pss) * MB, "age": age}}))
    return found


def grows(samples: list[Sample]) -> list[Trend]:
    return [trend for trend in trends(samples, day_seconds=DAY) if not trend.flat]


def test_a_leak_of_one_megabyte_a_day_is_seen_through_noise_and_restarts():
    for restarts in (False, True):
        (trend,) = grows(week(daily=1.0, noise=2.0, restarts=restarts))
        assert trend.what == "worker" and trend.early < trend.late
        assert trend.growth == pytest.approx(6 * MB, rel=0.2)


def test_noise_one_high_fault_and_a_process_that_starts_are_no_leak():
    samples = week(noise=2.0, restarts=True)
    samples[-1].values["worker"]["pss"] = 500 * MB
    assert grows(samples) == []


def test_what_happens_on_the_first_day_is_no_trend():
    first = [one for one in week() if one.at < DAY]
    for number, sample in enumerate(first):
        sample.values["worker"]["pss"] = number * 50 * MB
    assert trends(first, day_seconds=DAY) == []


@pytest.mark.django_db
def test_an_id_is_moved_by_milliseconds_and_back():
    id = new_id()
    with connection.cursor() as cursor:
        cursor.execute(calendar.PREPARE)
        cursor.execute("SELECT soak_moved(%s, -86400000), soak_moved(soak_moved(%s, -5), 5)", [id, id])
        moved, back = cursor.fetchone()
    assert isinstance(moved, uuid.UUID) and back == id
    assert (id_time(id) - id_time(moved)).total_seconds() == 86_400
    assert moved.int & ((1 << 80) - 1) == id.int & ((1 << 80) - 1)


@pytest.mark.parametrize("program", ["tests.chaos", "tests.soak"])
def test_the_programs_start_without_pytest_and_without_a_database(program):
    names = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "DJANGO_SETTINGS_MODULE")
    bare = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-m", program, "--help"], cwd=PROJECT, env=bare, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
