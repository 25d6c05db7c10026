"""The beat process: it installs the code's schedule, and sends its tasks through outages.

Any number of beats may run. Each sends every task, and a second poll at the same time finds nothing to claim.

The schedule is in django-celery-beat's tables, where a person can change it in the admin. The code adds
missing rows and updates rows after a setting has changed. It keeps changes from the admin.
"""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import structlog
from celery.beat import SchedulingError
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection, connections, transaction
from django_celery_beat.models import IntervalSchedule, PeriodicTask
from django_celery_beat.schedulers import DatabaseScheduler
from kombu.common import ignore_errors
from kombu.exceptions import OperationalError

from runtime.process.outage import Outage
from runtime.process.start import wait_for_postgres
from runtime.telemetry import health

log = structlog.get_logger(__name__)

#: The advisory lock of those who write the schedule.
SCHEDULE_LOCK = 0x6F726466


def schedule() -> dict[str, tuple[str, dt.timedelta]]:
    """Return every periodic task with its interval, by its name in the admin."""
    return {
        "poll the outbox": ("poll_outbox", dt.timedelta(seconds=settings.POLL_INTERVAL)),
        "sum the minutes": ("sum_minutes", dt.timedelta(minutes=1)),
    }


def install_schedule() -> None:
    """Write the code's schedule to the tables, but keep changes from the admin.

    A row's description has the interval that the code wrote last. The code writes again only if its interval
    differs from that.
    """
    for name, (task, interval) in schedule().items():
        from_code = f"From code: every {interval.total_seconds():g} s."
        row = PeriodicTask.objects.filter(name=name).first()
        if row is not None and row.description == from_code and row.task == task:
            continue
        every, _ = IntervalSchedule.objects.get_or_create(**_as_interval(interval))
        PeriodicTask.objects.update_or_create(
            name=name,
            defaults={
                "task": task,
                "interval": every,
                "crontab": None,
                "solar": None,
                "clocked": None,
                # Drop a task that is a whole interval late. The next one does its work.
                "expire_seconds": max(1, int(interval.total_seconds())),
                "description": from_code,
            },
        )


def _as_interval(interval: dt.timedelta) -> dict[str, Any]:
    seconds = interval.total_seconds()
    if seconds == int(seconds):
        return {"every": int(seconds), "period": IntervalSchedule.SECONDS}
    return {"every": int(interval / dt.timedelta(microseconds=1)), "period": IntervalSchedule.MICROSECONDS}


class Scheduler(DatabaseScheduler):
    """django-celery-beat's scheduler, which goes on after outages of PostgreSQL and of the broker."""

    _database, _broker = Outage(log), Outage(log)

    def setup_schedule(self) -> None:
        """Wait for PostgreSQL, and write the code's schedule."""
        wait_for_postgres(pause=time.sleep, work=self._write_schedule)

    def _write_schedule(self) -> None:
        """Take a lock. Two beats may start at once."""
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [SCHEDULE_LOCK])
            install_schedule()

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send the due tasks. Return the seconds to sleep."""
        health.beat()
        try:
            seconds = min(super().tick(*args, **kwargs) or 0.0, settings.CELERY_BEAT_MAX_LOOP_INTERVAL)
            self._database.end()
            return float(seconds)
        except (DatabaseError, InterfaceError) as error:
            self._database.warn("beat lost the database, trying again", error)
            for connection in connections.all():
                connection.close()
            if self._schedule is None:
                self._initial_read = True  # else django-celery-beat never reads it, and exits
            return 1.0

    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        """Send a task. After an error, connect again for the next one.

        After a switch-over of the broker, the open connection still leads to the former primary, which
        refuses each task. A new connection leads to the new primary. Celery would log each failed task with
        two stacks: log only the broker's first error, and return None.
        """
        try:
            sent = super().apply_async(*args, **kwargs)
        except SchedulingError as error:
            broker = self.__dict__.pop("connection", None)
            self.__dict__.pop("producer", None)
            if broker is not None:
                ignore_errors(broker, broker.close)
            if not isinstance(error.__context__, OperationalError):
                raise
            self._broker.warn("waiting for Valkey", error)
            return None
        self._broker.end("Valkey is back")
        return sent

    def _ensure_connected(self) -> Any:
        """Do not connect here. The first task that is sent connects.

        Celery would wait here until the broker answers, and beat's probe would report a hang.
        """
        return self.connection
