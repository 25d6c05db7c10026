"""The schedule from code that a person may change, and a beat that goes on through outages."""

from __future__ import annotations

import datetime as dt
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
import redis
from django.db import OperationalError, connection, connections
from django.utils import timezone
from django_celery_beat.models import IntervalSchedule, PeriodicTask

from config.beat import SCHEDULE_LOCK, Scheduler, install_schedule, schedule
from config.celery import app
from config.roles import commands
from local.machine import free_port
from notifications.wake import DRAIN
from runtime.jobs.start import RUN_JOBS
from tests.kit.failover import ValkeyPair
from tests.kit.months import dsn
from tests.kit.races import together
from tests.kit.waiting import PATIENCE, until
from tests.kit.warm import Program
from tests.ops.busy import make_app

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


@pytest.mark.django_db(transaction=True, databases=["default", "direct", "owner"])
class TestOutages:
    def test_a_beat_reads_the_schedule_again_if_the_database_died_at_its_first_read(self, monkeypatch):
        read, errors = Scheduler.all_as_schedule, [OperationalError("the server ended this session")]

        def read_once_it_is_back(beat):
            if errors:
                raise errors.pop()
            return read(beat)

        def tick(_):
            beat = Scheduler(app=app, lazy=False)
            PeriodicTask.objects.all().delete()  # nothing is due
            beat.tick()
            beat.tick()
            return beat.schedule

        monkeypatch.setattr(Scheduler, "all_as_schedule", read_once_it_is_back)
        assert together(1, tick) == [{}]
        assert errors == []

    def test_a_beat_ticks_on_while_its_broker_is_away(self):
        """Else it looks hung to the probe, which restarts it."""
        install_schedule()
        PeriodicTask.objects.update(last_run_at=timezone.now() - dt.timedelta(days=2))

        waits: list[float] = []

        def tick() -> None:
            beat = Scheduler(app=make_app(f"redis://127.0.0.1:{free_port()}/0"), lazy=False)
            waits.extend(beat.tick() for _ in range(len(schedule()) + 1))
            beat.sync()  # else at the exit of this process, without a database
            connections.close_all()

        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert waits[:-1] == [0] * len(schedule()) and waits[-1] > 0, "each task was tried once"


@contextmanager
def beat_process(**settings: str) -> Iterator[Program]:
    """Run a beat on the test's database."""
    host, port, name, user = (connection.settings_dict[key] for key in ("HOST", "PORT", "NAME", "USER"))
    url = f"postgresql://{user}@{host}:{port}/{name}"
    environment = os.environ | {"DATABASE_URL": url} | settings
    process = Program(commands()["beat"], environment=environment, stdout=1, stderr=2)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.flow
@pytest.mark.django_db(transaction=True, databases=["default", "direct"])
class TestStopping:
    def test_ends_as_it_starts_though_the_database_keeps_it_waiting(self):
        with held(f"SELECT pg_advisory_lock({SCHEDULE_LOCK})"), beat_process() as process:
            until(someone_waits)
            process.terminate()
            assert process.wait(PATIENCE) == 0

    def test_ends_as_it_ticks_once_the_database_lets_it_go(self, valkey_url):
        with redis.Redis.from_url(valkey_url) as broker, beat_process(POLL_INTERVAL="0.5") as process:
            # The first is written at once, the second is not.
            until(lambda: broker.llen("orderpost:tasks") > 1)
            with held("LOCK TABLE django_celery_beat_periodictask, django_celery_beat_periodictasks"):
                until(someone_waits)
                process.terminate()
            assert process.wait(PATIENCE) == 0


def test_each_task_that_is_scheduled_or_sent_by_its_name_is_one():
    app.loader.import_default_modules()
    assert {DRAIN, RUN_JOBS, *(name for name, _ in schedule().values())} <= set(app.tasks)


@pytest.mark.flow
@pytest.mark.django_db(transaction=True, databases=["default", "direct"])
def test_a_beat_sends_its_tasks_to_the_replica_that_took_over(tmp_path):
    pair = ValkeyPair(folder=tmp_path)
    pair.start(log=tmp_path / "valkey.log")
    try:
        with beat_process(POLL_INTERVAL="0.5", REDIS_URL=pair.url) as process:
            for change in range(3):
                if change:
                    pair.switch_over()
                with pair.primary.client() as broker:
                    broker.delete("orderpost:tasks")
                    until(lambda to=broker: to.llen("orderpost:tasks") > 1)
            assert process.poll() is None
    finally:
        pair.stop()


@contextmanager
def held(statement: str) -> Iterator[None]:
    with psycopg.connect(dsn()) as session:
        session.execute(statement)
        yield


def someone_waits() -> bool:
    with psycopg.connect(dsn()) as watch:
        waits = """
            SELECT 1 FROM pg_locks JOIN pg_database AS here ON here.oid = database
            WHERE NOT granted AND datname = current_database()  -- other tests run in other databases
        """
        return watch.execute(waits).fetchone() is not None
