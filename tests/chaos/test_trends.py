"""A long chaos run sees growth, and tells it from noise. The program starts."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import pytest
from django.db import connection

from local.machine import PROJECT
from tests.chaos.trends import MB, PG, PG_NAMES, Sample, Trend, trends

DAY = 480.0


def week(*, daily: float = 0.0, noise: float = 0.0, restarts: bool = False) -> list[Sample]:
    """Return samples of a worker that begins with 100 MB and grows by `daily` MB a day."""
    chance = random.Random(1)
    samples = []
    for number in range(1, int(7 * DAY / 30)):
        at = number * 30.0
        own = 100 + daily * at / DAY + chance.uniform(-noise, noise)
        age = at % DAY if restarts else at
        samples.append(Sample(at, {"worker": {"own memory": own * MB, "age": age}}))
    return samples


def grows(samples: list[Sample]) -> list[Trend]:
    return [trend for trend in trends(samples) if not trend.flat]


def test_a_leak_of_one_megabyte_a_day_is_seen_through_noise():
    (trend,) = grows(week(daily=1.0, noise=2.0))
    assert trend.what == "worker" and trend.early < trend.late
    assert trend.growth == pytest.approx(5.25 * MB, rel=0.2)


def test_noise_and_one_high_fault_are_no_leak():
    samples = week(noise=2.0)
    samples[-1].values["worker"]["own memory"] = 500 * MB
    assert grows(samples) == []


def test_a_process_that_was_started_again_has_no_trend():
    assert trends(week(daily=1.0, restarts=True)) == []


def test_what_happens_in_the_first_quarter_is_no_trend():
    samples = week()
    for sample in samples[: len(samples) // 4]:
        sample.values["worker"]["own memory"] = 900 * MB
    (trend,) = trends(samples)
    assert trend.early == trend.late == 100 * MB


def test_the_program_starts_without_pytest_and_without_a_database():
    names = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "DJANGO_SETTINGS_MODULE")
    bare = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--help"], cwd=PROJECT, env=bare, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def overdue() -> float:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute(PG)
        return float(dict(zip(PG_NAMES, cursor.fetchone(), strict=True))["overdue dead rows"])


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("dead", "late"), [(150, 0), (300, 100)])
def test_only_dead_rows_beyond_those_that_autovacuum_waits_for_are_overdue(dead: int, late: int):
    before = overdue()
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE TABLE deleted (n int) WITH (autovacuum_enabled = off, autovacuum_vacuum_threshold = 200)"
        )
        try:
            cursor.execute("INSERT INTO deleted SELECT generate_series(1, %s)", [dead])
            cursor.execute("DELETE FROM deleted")
            assert overdue() == before + late
        finally:
            cursor.execute("DROP TABLE deleted")
