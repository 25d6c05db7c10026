"""The engine's tables.

`events` has published events, `inbox` received events, `jobs` bulk jobs, `pauses` pauses, and `traffic` the
charts' sums. This module has idempotency keys, API tokens, heartbeats, detached partitions and erasures.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import secrets
import time
from typing import ClassVar

from django.db import connection, models
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone

from outbox.database.ids import new_id
from outbox.models.events import SHARDS, OutboxEvent
from outbox.models.inbox import InboundDeadLetter, ProcessedEvent
from outbox.models.jobs import BulkJob
from outbox.models.pauses import Pause
from outbox.models.traffic import TrafficSum

__all__ = [
    "SHARDS",
    "ApiToken",
    "BulkJob",
    "DetachedPartition",
    "Erasure",
    "Heartbeat",
    "IdempotencyKey",
    "InboundDeadLetter",
    "OutboxEvent",
    "Pause",
    "ProcessedEvent",
    "TrafficSum",
]


class IdempotencyKey(models.Model):
    """The stored answer to a request with an Idempotency-Key.

    The transaction that does the work writes it. It is kept for IDEMPOTENCY_DAYS.
    """

    pk = models.CompositePrimaryKey("scope", "key")
    scope = models.CharField(max_length=50)  # "token:<id>"
    key = models.CharField(max_length=255)
    request_hash = models.CharField(max_length=64, default="")
    answer_status = models.PositiveSmallIntegerField(null=True)
    answer_body = models.TextField(default="")  # as sent, byte for byte
    answer_location = models.TextField(default="")
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "idempotency_keys"
        indexes = [models.Index(fields=["created_at"], name="idempotency_keys_age")]  # the purge

    def __str__(self) -> str:
        return f"{self.scope}/{self.key}"


class ApiToken(models.Model):
    """A caller's access to the API. Only the SHA-256 of the secret is stored."""

    SCOPES = ("orders:read", "orders:write", "notifications:read", "notifications:write", "events:write")

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=12, editable=False)  # identifies a token in a list
    digest = models.CharField(max_length=64, unique=True, editable=False)
    scopes = models.JSONField(default=list)
    # The one system of ORDER_SOURCES whose orders the token can see and send events of, or "" for no limit.
    source = models.CharField(max_length=100, default="", db_default="", blank=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, editable=False)  # at most an hour too early

    #: Days without a use after which a token is marked.
    UNUSED_DAYS = 90

    class Meta:
        db_table = "api_tokens"

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    def is_unused(self) -> bool:
        """Return whether a live token was not used for UNUSED_DAYS."""
        now = timezone.now()
        if self.revoked_at or (self.expires_at and self.expires_at <= now):
            return False
        known = self.last_used_at or self.created_at
        return known <= now - dt.timedelta(days=self.UNUSED_DAYS)

    @staticmethod
    def digest_of(secret: str) -> str:
        """Return the SHA-256 of a secret. One round is enough, because a secret has 256 random bits."""
        return hashlib.sha256(secret.encode()).hexdigest()

    @classmethod
    def new_secret(cls) -> str:
        """Return a new secret. Scanners for leaked secrets can search for its prefix."""
        return f"op_{secrets.token_urlsafe(32)}"


class Heartbeat(models.Model):
    """The time of a regular job's last run, by the database's clock."""

    name = models.CharField(primary_key=True, max_length=50)
    beat_at = models.DateTimeField(db_default=Now())
    since = models.DateTimeField(db_default=Now())  # the first of the latest beats without a gap

    #: Seconds without a beat that count as a gap.
    GAP = 15.0
    #: When this process last beat, by name (monotonic).
    _beat_at: ClassVar[dict[str, float]] = {}

    class Meta:
        db_table = "heartbeats"

    def __str__(self) -> str:
        return f"{self.name} at {self.beat_at:%Y-%m-%d %H:%M:%S}"

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
                [name, cls.GAP],
            )

    @classmethod
    def read_unbroken(cls, *, name: str) -> float | None:
        """Return the seconds since the first of the latest beats without a gap, or None if there is none."""
        recent = cls.objects.filter(name=name, beat_at__gt=Now() - dt.timedelta(seconds=cls.GAP))
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


class DetachedPartition(models.Model):
    """A detached partition: the time of each later step, and the archive's manifest.

    Records are kept for ever. The time of a step is null until the step is done. A step that was done but not
    recorded is repeated.
    """

    name = models.CharField(primary_key=True, max_length=63)
    table = models.CharField(max_length=63)
    since = models.DateTimeField()  # [since, until) are the times of its ids
    until = models.DateTimeField()
    manifest = models.JSONField(null=True)  # outbox.retention.archives.manifest.Manifest; null until archived
    detached_at = models.DateTimeField(db_default=Now())
    archived_at = models.DateTimeField(null=True)
    dropped_at = models.DateTimeField(null=True)
    deleted_at = models.DateTimeField(null=True)  # of the archive, after ARCHIVE_YEARS

    class Meta:
        db_table = "retired_partitions"
        verbose_name = "partition"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.name


class Erasure(models.Model):
    """An erasure of a person, identified by a keyed hash of the address, and its remaining work."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    address_hash = models.CharField(max_length=64, unique=True)
    archives = models.JSONField(default=list)  # partitions whose archives must still be rewritten
    counts = models.JSONField(default=dict)  # rows changed, by table
    requested_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)  # of everything except the archives

    class Meta:
        db_table = "erasures"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"erasure of {self.requested_at:%Y-%m-%d}"
