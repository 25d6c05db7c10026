"""The engine's own tables: domain events out, events in, idempotency keys, API tokens, heartbeats, and the
records of what left: partitions and persons."""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets

from django.db import connection, models
from django.db.models import F, Func, Q, Value
from django.db.models.functions import Now

from outbox.core.ids import new_id
from outbox.core.partitioned import Partitioned
from outbox.event_retention import EVENT_RETENTION

SHARDS = 64


class OutboxEvent(Partitioned):
    """A domain event that other services must get; written with the change that it tells of.

    The relay publishes the events of one shard in `position` order. No name or address is in a payload.
    """

    retention = EVENT_RETENTION

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    aggregate_type = models.CharField(max_length=50)
    aggregate_id = models.UUIDField()
    event_type = models.CharField(max_length=100)  # the topic: order.order.paid.v1
    version = models.PositiveSmallIntegerField(default=1)  # of the payload's schema
    sequence = models.PositiveIntegerField()  # the aggregate's own version
    payload = models.JSONField()
    metadata = models.JSONField(
        default=dict
    )  # of the envelope: traceId, correlationId, idempotencyKey, userId

    # A sequence of our own: identity columns of partitioned tables need PostgreSQL 17.
    position = models.BigIntegerField(
        db_default=Func(Value("outbox_events_position_seq"), function="nextval"), editable=False
    )
    shard = models.PositiveSmallIntegerField()

    retry_count = models.PositiveIntegerField(default=0)
    next_attempt_at = models.DateTimeField(db_default=Now())
    last_error = models.TextField(default="", blank=True)

    created_at = models.DateTimeField(db_default=Now(), editable=False)
    published_at = models.DateTimeField(null=True, editable=False)
    dead_lettered_at = models.DateTimeField(null=True, editable=False)
    discarded_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        db_table = "outbox_events"
        permissions = [("resolve_outboxevent", "Can republish and discard events")]
        indexes = [
            # the relay's next rows
            models.Index(
                fields=["position"],
                name="outbox_events_next",
                condition=Q(published_at__isnull=True, dead_lettered_at__isnull=True),
            ),
            # what holds back the later events of its aggregate: the relay, at each round; triage
            models.Index(
                fields=["shard"],
                name="outbox_events_stuck",
                condition=Q(published_at__isnull=True, discarded_at__isnull=True)
                & (Q(dead_lettered_at__isnull=False) | Q(retry_count__gt=0)),
            ),
            # GET /orders/{id}/events
            models.Index(fields=["aggregate_id", "sequence"], name="outbox_events_aggregate"),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(shard__lt=SHARDS), name="outbox_events_shard_known"),
        ]

    def __str__(self) -> str:
        return f"{self.event_type} #{self.sequence} of {self.aggregate_id}"


class ProcessedEvent(models.Model):
    """An event of another service that a consumer has had its effect of."""

    pk = models.CompositePrimaryKey("event_id", "consumer")
    event_id = models.UUIDField()
    consumer = models.CharField(max_length=100)
    event_type = models.CharField(max_length=100)
    source = models.CharField(max_length=100, default="")
    receive_count = models.PositiveIntegerField(default=1)
    processed_at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "processed_events"
        indexes = [models.Index(fields=["processed_at"], name="processed_events_age")]  # the purge

    def __str__(self) -> str:
        return f"{self.event_id} by {self.consumer}"


class DeadEvent(models.Model):
    """An event of another service that could not be taken, as it came; a person replays or discards it."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    topic = models.CharField(max_length=255)
    key = models.CharField(max_length=255, default="", blank=True)
    event_id = models.UUIDField()
    consumer = models.CharField(max_length=100)
    envelope = models.TextField()
    error = models.TextField()
    failed_at = models.DateTimeField(db_default=Now(), editable=False)
    replayed_at = models.DateTimeField(null=True, editable=False)
    discarded_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        db_table = "dead_events"
        default_permissions = ("view",)
        permissions = [("resolve_deadevent", "Can replay and discard events")]

    def __str__(self) -> str:
        return f"{self.topic} {self.event_id}"


class IdempotencyKey(models.Model):
    """What was done under a key: a request's stored answer, or the notification that an intent became.

    Written in the transaction that did the work, kept 7 days.
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
    """A caller's right to use the API. Only the SHA-256 of the secret is kept."""

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
        """This function will hash a secret; it is 256 random bits, so one plain SHA-256 is enough."""
        return hashlib.sha256(secret.encode()).hexdigest()

    @classmethod
    def new_secret(cls) -> str:
        """This function will make a secret with a prefix that scanners of leaked secrets can look for."""
        return f"op_{secrets.token_urlsafe(32)}"


class Heartbeat(models.Model):
    """When something that must happen regularly last did, by the database's clock."""

    name = models.CharField(primary_key=True, max_length=50)
    beat_at = models.DateTimeField(db_default=Now())
    since = models.DateTimeField(db_default=Now())  # it has happened without a gap

    #: Seconds without a beat that make a gap, where that is asked.
    GAP = 15.0

    class Meta:
        db_table = "heartbeats"

    def __str__(self) -> str:
        return f"{self.name} at {self.beat_at:%Y-%m-%d %H:%M:%S}"

    @classmethod
    def beat(cls, *, name: str) -> None:
        """This function will record that `name` happened now."""
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
    def unbroken(cls, *, name: str) -> float | None:
        """This function will give the seconds that `name` has gone on without a gap, None if it has not."""
        recent = cls.objects.filter(name=name, beat_at__gt=Now() - dt.timedelta(seconds=cls.GAP))
        span = recent.annotate(span=Now() - F("since")).values_list("span", flat=True).first()
        return None if span is None else span.total_seconds()

    @classmethod
    def age(cls, *, name: str) -> float | None:
        """This function will give the seconds since `name` last happened, None if it never did."""
        age = (
            cls.objects.filter(name=name)
            .annotate(age=Now() - F("beat_at"))
            .values_list("age", flat=True)
            .first()
        )
        return None if age is None else age.total_seconds()


class RetiredPartition(models.Model):
    """A partition that left its table: when each step of its end was done, and where its archive is.

    Kept for good. What is not done yet is null; a step that was done and not recorded is done again.
    """

    name = models.CharField(primary_key=True, max_length=63)
    table = models.CharField(max_length=63)
    since = models.DateTimeField()  # [since, until): the times of the ids
    until = models.DateTimeField()
    manifest = models.JSONField(null=True)  # outbox/retention/archive.py has its shape; null until archived
    detached_at = models.DateTimeField(db_default=Now())
    archived_at = models.DateTimeField(null=True)
    dropped_at = models.DateTimeField(null=True)
    deleted_at = models.DateTimeField(null=True)  # the archive, after its years

    class Meta:
        db_table = "retired_partitions"
        verbose_name = "partition"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.name


class Erasure(models.Model):
    """A person who was forgotten, by a keyed hash of the address: what is done, what is still to be done."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    address_hash = models.CharField(max_length=64, unique=True)
    owner_ids = models.JSONField(default=list)  # whose rows are erased: the person's orders
    archives = models.JSONField(default=list)  # those still to be rewritten, by the partition's name
    counts = models.JSONField(default=dict)  # rows changed, by table
    requested_at = models.DateTimeField(db_default=Now())
    finished_at = models.DateTimeField(null=True)  # of all but the archives

    class Meta:
        db_table = "erasures"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"erasure of {self.requested_at:%Y-%m-%d}"
