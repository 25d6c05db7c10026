"""The schedule from code that a person may change, and the lock that lets one beat lead."""

from __future__ import annotations

import pytest
from django.db import connection, connections
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from config.beat import LOCK, WAIT_SECONDS, SingleBeat, install_schedule, schedule
from config.celery import app
from tests.concurrency.helpers import together

POLL = "poll the outbox"


def every():
    interval = PeriodicTask.objects.get(name=POLL).interval
    return interval.schedule.run_every.total_seconds()


@pytest.mark.django_db
class TestSchedule:
    def test_makes_what_is_missing_once(self, settings):
        settings.POLL_INTERVAL = 60.0
        install_schedule()
        install_schedule()
        assert PeriodicTask.objects.count() == len(schedule())
        assert every() == 60
        assert PeriodicTask.objects.get(name=POLL).expire_seconds == 60

    def test_follows_a_changed_setting_also_below_a_second(self, settings):
        for interval in (60.0, 5.0, 0.5):
            settings.POLL_INTERVAL = interval
            install_schedule()
            assert every() == interval

    def test_leaves_a_persons_changes_alone(self, settings):
        settings.POLL_INTERVAL = 60.0
        install_schedule()
        ten, _ = IntervalSchedule.objects.get_or_create(every=10, period="seconds")
        PeriodicTask.objects.filter(name=POLL).update(interval=ten, enabled=False)
        install_schedule()
        assert every() == 10
        assert PeriodicTask.objects.get(name=POLL).enabled is False


@pytest.mark.django_db(transaction=True, databases=["default", "direct"])
class TestLeading:
    def test_a_second_beat_waits_while_the_first_holds_the_lock(self):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [LOCK])
        try:
            (wait,) = together(1, lambda _: SingleBeat(app=app, lazy=False).tick())
            assert wait == WAIT_SECONDS
        finally:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_advisory_unlock(%s)", [LOCK])

    def test_a_beat_keeps_one_lock_however_often_it_ticks(self):
        def lead(_):
            beat = SingleBeat(app=app, lazy=False)
            leads = [beat._leads() for _ in range(3)]
            with connections["direct"].cursor() as cursor:
                cursor.execute(
                    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = %s", [LOCK]
                )
                return leads, cursor.fetchone()[0]

        assert together(1, lead) == [([True, True, True], 1)]
