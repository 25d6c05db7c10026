"""The engine's own tables.

Events out are in `events`, events in in `inbox`, bulk jobs in `jobs`, pauses in `pauses`, the
charts' sums in `traffic`.

Here are idempotency keys, API tokens, heartbeats, partitions that left and erased persons.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets

from django.db import connection, models
from django.db.models import F
from django.db.models.functions import Now

from outbox.database.ids import new_id
from outbox.models.events import SHARDS, OutboxEvent
from outbox.models.inbox import InboundDeadLetter, ProcessedEvent
from outbox.models.jobs import BulkJob
from outbox.models.pauses import Pause
from outbox.models.roles import RoleGrant
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
    "RoleGrant",
    "TrafficSum",
]


class IdempotencyKey(models.Model):
    """What was done under a key: the stored answer of a request, or the notification of an event.

    Written in the transaction that did the work; kept 7 days.
    """

    pk = models.CompositePrimaryKey("scope", "key")
    scope = models.CharField(max_length=50)  # "email", or "token:<id>" for a request
    key = models.CharField(max_length=255)
    request_hash = models.CharField(max_length=64, default="")
    answer_status = models.PositiveSmallIntegerField(null=True)
    answer_body = models.TextField(default="")  # as sent, byte for byte
    answer_location = models.TextField(default="")
    notification_id = models.UUIDField(null=True)
    created_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "idempotency_keys"
        indexes = [models.Index(fields=["created_at"], name="idempotency_keys_age")]  # the purge

    def __str__(self) -> str:
        return f"{self.scope}/{self.key}"


class ApiToken(models.Model):
    """A caller's access to the API. Only the SHA-256 of the secret is stored."""

    SCOPES = ("orders:read", "orders:write", "notifications:read", "notifications:write")

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=12, editable=False)  # enough to recognise a token in a list
    digest = models.CharField(max_length=64, unique=True, editable=False)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        db_table = "api_tokens"

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    @staticmethod
    def digest_of(secret: str) -> str:
        """Hash a secret. It is 256 random bits, so one plain SHA-256 is enough."""
        return hashlib.sha256(secret.encode()).hexdigest()

    @classmethod
    def new_secret(cls) -> str:
        """Make a secret with a prefix that scanners for leaked secrets can look for."""
        return f"op_{secrets.token_urlsafe(32)}"


class Heartbeat(models.Model):
    """When a regular job last ran, by the database's clock."""

    name = models.CharField(primary_key=True, max_length=50)
    beat_at = models.DateTimeField(db_default=Now())
    since = models.DateTimeField(db_default=Now())  # the start of the beats without a gap

    #: Seconds without a beat that count as a gap.
    GAP = 15.0

    class Meta:
        db_table = "heartbeats"

    def __str__(self) -> str:
        return f"{self.name} at {self.beat_at:%Y-%m-%d %H:%M:%S}"

    @classmethod
    def beat(cls, *, name: str) -> None:
        """Record that `name` happened now."""
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
        """Return the seconds since the first of the latest beats without a gap; None if there is none."""
        recent = cls.objects.filter(name=name, beat_at__gt=Now() - dt.timedelta(seconds=cls.GAP))
        span = recent.annotate(span=Now() - F("since")).values_list("span", flat=True).first()
        return None if span is None else span.total_seconds()

    @classmethod
    def read_age(cls, *, name: str) -> float | None:
        """Return the seconds since `name` last happened; None if it never did."""
        age = (
            cls.objects.filter(name=name)
            .annotate(age=Now() - F("beat_at"))
            .values_list("age", flat=True)
            .first()
        )
        return None if age is None else age.total_seconds()


class DetachedPartition(models.Model):
    """A partition that left its table: when each later step was done, and where the archive is.

    Records are kept for ever. The time of a step is null until it is done; a step that was done and not
    recorded is repeated. Table and permission have the names of release 0.1.0.
    """

    name = models.CharField(primary_key=True, max_length=63)
    table = models.CharField(max_length=63)
    since = models.DateTimeField()  # [since, until): the times of the ids
    until = models.DateTimeField()
    manifest = models.JSONField(null=True)  # outbox.retention.archives.manifest.Manifest; null until archived
    detached_at = models.DateTimeField(db_default=Now())
    archived_at = models.DateTimeField(null=True)
    dropped_at = models.DateTimeField(null=True)
    deleted_at = models.DateTimeField(null=True)  # the archive, after its years

    class Meta:
        db_table = "retired_partitions"
        verbose_name = "partition"
        default_permissions = ()
        permissions = [("view_retiredpartition", "Can view partition")]

    def __str__(self) -> str:
        return self.name


class Erasure(models.Model):
    """An erased person, by a keyed hash of the address: what was erased, and what is still to be erased."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    address_hash = models.CharField(max_length=64, unique=True)
    owner_ids = models.JSONField(default=list)  # whose rows are erased: the person's orders
    archives = models.JSONField(default=list)  # names of partitions whose archives are still to be rewritten
    counts = models.JSONField(default=dict)  # rows changed, by table
    requested_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)  # all but the archives

    class Meta:
        db_table = "erasures"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"erasure of {self.requested_at:%Y-%m-%d}"
