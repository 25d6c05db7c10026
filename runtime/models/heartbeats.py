"""The times at which regular jobs ran, and at which each process last beat."""

from __future__ import annotations

import datetime as dt
import math
import time
from typing import ClassVar

from django.db import connection, models
from django.db.models import F
from django.db.models.functions import Now

from runtime.database.purge_rules import PurgeRule
from runtime.process.presence import GAP_SECONDS


class Heartbeat(models.Model):
    """The time of a regular job's last run, by the database's clock.

    A row with a `kind` is a process (runtime.process.presence).
    """

    name = models.CharField(primary_key=True, max_length=50)  # the job's, or "job@process" if several run it
    beat_at = models.DateTimeField(db_default=Now())
    since = models.DateTimeField(db_default=Now())  # the first of the latest beats without a gap
    kind = models.CharField(max_length=20, null=True)
    host = models.CharField(max_length=100, null=True)
    process = models.IntegerField(null=True)  # its number on the host
    release = models.CharField(max_length=50, null=True)
    # By how many seconds the process's clock is ahead of the database's.
    clock_ahead = models.FloatField(null=True)

    #: Beats when a pause of the delivery ends, since the pause's own row is deleted then. No process has it.
    DELIVERY_RESUMED: ClassVar[str] = "delivery_resumed"
    #: When this process last beat, by name (monotonic).
    _beat_at: ClassVar[dict[str, float]] = {}

    # of relays that were killed
    purge_rules = (PurgeRule("beat_at", 7, keep=f"name = '{DELIVERY_RESUMED}'"),)

    class Meta:
        db_table = "heartbeats"

    def __str__(self) -> str:
        return f"{self.title} at {self.beat_at:%Y-%m-%d %H:%M:%S}"

    @property
    def title(self) -> str:
        return f"{self.kind} (process {self.process} on {self.host})" if self.kind else self.name

    @classmethod
    def beat(cls, *, name: str, every: float = 0.0) -> None:
        """Record that the job `name` runs now, at most once in `every` seconds for each process."""
        now = time.monotonic()
        if now - cls._beat_at.get(name, -math.inf) < every:
            return
        cls._beat_at[name] = now
        with connection.cursor() as cursor:
            cursor.execute(
                """
                INSERT INTO heartbeats AS old (name, beat_at, since)
                VALUES (%s, statement_timestamp(), statement_timestamp())
                ON CONFLICT (name) DO UPDATE SET beat_at = excluded.beat_at, since = CASE
                    WHEN old.beat_at < excluded.beat_at - %s * interval '1 second' THEN excluded.since
                    ELSE old.since END
                """,
                [name, GAP_SECONDS],
            )

    @classmethod
    def begin(cls, *, name: str, every: dt.timedelta) -> bool:
        """Record that the job `name` runs now, unless it ran within `every`. Return whether it was recorded.

        Of several processes at once, one records it.
        """
        with connection.cursor() as cursor:
            cursor.execute(
                """
                INSERT INTO heartbeats AS old (name, beat_at, since)
                VALUES (%s, statement_timestamp(), statement_timestamp())
                ON CONFLICT (name) DO UPDATE SET beat_at = excluded.beat_at, since = excluded.since
                WHERE old.beat_at <= excluded.beat_at - %s * interval '1 second'
                """,
                [name, every.total_seconds()],
            )
            return bool(cursor.rowcount)

    @classmethod
    def seconds_without_gap(cls, *, name: str) -> float | None:
        """Return the seconds since the first of the latest beats without a gap, or None if there is none."""
        recent = cls.objects.filter(name=name, beat_at__gt=Now() - dt.timedelta(seconds=GAP_SECONDS))
        span = recent.annotate(span=Now() - F("since")).values_list("span", flat=True).first()
        return None if span is None else span.total_seconds()

    @classmethod
    def read_age(cls, *, name: str) -> float | None:
        """Return the seconds since the last beat of `name`, or None if it never beat."""
        age = (
            cls.objects.filter(name=name)
            .annotate(age=Now() - F("beat_at"))
            .values_list("age", flat=True)
            .first()
        )
        return None if age is None else age.total_seconds()
