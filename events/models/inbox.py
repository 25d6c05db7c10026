"""The inbox of received events, and the dead letters among them."""

from __future__ import annotations

import datetime as dt
import hashlib
import uuid
from collections.abc import Iterable
from typing import NamedTuple, Self

from django.conf import settings
from django.contrib.postgres.indexes import GinIndex
from django.db import connections, models, transaction
from django.db.models import Q
from django.db.models.functions import Now

from events.models.states import (
    DISCARD_LETTER,
    REPLAY_REQUESTED,
    REQUEST_REPLAY,
    UNDECIDED,
    UNRESOLVED,
    EventTransition,
)
from runtime.binding import by_order
from runtime.database.ids import new_id
from runtime.database.postgres.cursor import Prepared
from runtime.database.purge_rules import PurgeRule
from runtime.personal_data import ERASED

#: A person decided to replay the dead letter, and its consumer is paused or stopped.
_REPLAY_WAITS = "replay_requested_at IS NOT NULL AND replayed_at IS NULL AND discarded_at IS NULL"


class EventKey(NamedTuple):
    """The inbox's key of an event. `producer` is the service that made it."""

    event_id: uuid.UUID
    consumer: str
    producer: str

    @property
    def fallback_consumer(self) -> str:
        """A consumer name of the producer's own, which no sender can choose."""
        return f"{self.consumer}:{hashlib.sha256(self.producer.encode()).hexdigest()[:32]}"


class Receipt(NamedTuple):
    """The inbox's record of a received event at the database's time."""

    received_at: dt.datetime
    #: The consumer for which the event is recorded, which may be one of the producer's own.
    consumer: str
    #: When the event was received for the first time; None if this is the first time.
    first_at: dt.datetime | None
    #: Of the event that was first.
    source: str


class ProcessedEventQuerySet(models.QuerySet["ProcessedEvent"]):
    """The inbox. Two producers may use one id for two events.

    The second one is recorded for its producer's `fallback_consumer`. A letter may have no producer.
    """

    def record(self, *, key: EventKey, event_type: str) -> Receipt:
        """Record that an event was received. Wait for a transaction that processes the same event."""
        receipt = self._record(key, key.consumer, event_type)
        if receipt is None:
            receipt = self._record(key, key.fallback_consumer, event_type)
            assert receipt is not None
        return receipt

    def _record(self, key: EventKey, consumer: str, event_type: str) -> Receipt | None:
        """Record an event, or return None if an event of another producer has the id."""
        with connections[self.db].cursor() as cursor:
            cursor.execute(_RECORD, [key.event_id, consumer, event_type[:100], key.producer[:100]])
            row = cursor.fetchone()
        return None if row is None else Receipt(*row)


_RECORD = Prepared(
    """
    INSERT INTO processed_events AS old (event_id, consumer, event_type, source, receive_count)
    VALUES (%s, %s, %s, %s, 1)
    ON CONFLICT (event_id, consumer) DO UPDATE SET receive_count = old.receive_count + 1
        WHERE old.source IN (excluded.source, '')
    RETURNING statement_timestamp(), consumer, CASE WHEN receive_count > 1 THEN processed_at END, source
    """
)


class ProcessedEvent(models.Model):
    """An event of another service that a consumer has processed, or that is a dead letter."""

    pk = models.CompositePrimaryKey("event_id", "consumer")
    event_id = models.UUIDField()
    consumer = models.CharField(max_length=100)
    event_type = models.CharField(max_length=100)
    source = models.CharField(max_length=100, default="")
    receive_count = models.PositiveIntegerField(default=1)
    processed_at = models.DateTimeField(db_default=Now())

    objects = ProcessedEventQuerySet.as_manager()

    purge_rules = (PurgeRule("processed_at", lambda: settings.PROCESSED_EVENT_DAYS),)

    class Meta:
        db_table = "processed_events"
        indexes = [models.Index(fields=["processed_at"], name="processed_events_age")]  # the purge

    def __str__(self) -> str:
        return f"{self.event_id} by {self.consumer}"


class InboundDeadLetterQuerySet(models.QuerySet["InboundDeadLetter"]):
    """Filters by the states of `events.models.states`, and the verbs that change a state."""

    def unresolved(self) -> Self:
        """Filter the letters that are neither replayed nor discarded."""
        return self.filter(UNRESOLVED.rows)

    def undecided(self) -> Self:
        """Filter the letters about which a person has to decide."""
        return self.filter(UNDECIDED.rows)

    def replay_requested(self) -> Self:
        """Filter the letters that their consumer must process now."""
        return self.filter(REPLAY_REQUESTED.rows)

    def request_replay(self, *, ids: Iterable[uuid.UUID]) -> list[uuid.UUID]:
        """Ask the consumer to process dead letters. Return the ids of those that were replayable."""
        return self._resolve(ids, REQUEST_REPLAY)

    def discard(self, *, ids: Iterable[uuid.UUID]) -> list[uuid.UUID]:
        """Discard dead letters. Return the ids of those that were unresolved."""
        return self._resolve(ids, DISCARD_LETTER)

    def _resolve(self, ids: Iterable[uuid.UUID], transition: EventTransition) -> list[uuid.UUID]:
        with transaction.atomic(using=self.db):
            rows = self.filter(transition.before.rows, id__in=list(ids)).order_by("id").select_for_update()
            ids_in_state = list(rows.values_list("id", flat=True))
            self.filter(id__in=ids_in_state).update(**transition.columns)
        return ids_in_state


class InboundDeadLetter(models.Model):
    """An event of another service that could not be processed.

    The text may differ from what came: PostgreSQL stores only UTF-8 without NUL, and a long event is cut.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    topic = models.CharField(max_length=255)
    key = models.CharField(max_length=255, default="", blank=True)
    event_id = models.UUIDField()
    consumer = models.CharField(max_length=100)
    envelope = models.TextField()
    is_exact = models.BooleanField(
        db_default=True,
        help_text="Whether the envelope is exactly what came. Otherwise it was not UTF-8, had a NUL"
        " character in it or was too long, and cannot be replayed: have its sender correct it and send it"
        " again.",
    )
    error = models.TextField()
    # The order that the event is about, if it could be read, and the keyed hash of each address in its texts.
    order_id = models.UUIDField(null=True, editable=False)
    address_hashes = models.JSONField(default=list, db_default=[], editable=False)
    failed_at = models.DateTimeField(db_default=Now(), editable=False)
    replay_requested_at = models.DateTimeField(null=True, editable=False)
    replayed_at = models.DateTimeField(null=True, editable=False)
    discarded_at = models.DateTimeField(null=True, editable=False)

    in_shops = staticmethod(by_order)

    objects = InboundDeadLetterQuerySet.as_manager()

    #: Nothing is left to replay of an erased letter, so it is discarded.
    erased_texts = {
        "key": "''",
        "envelope": f"'{ERASED}'",
        "error": f"'{ERASED}'",
        "discarded_at": """CASE WHEN replayed_at IS NULL
            THEN coalesce(discarded_at, statement_timestamp()) ELSE discarded_at END""",
    }
    #: Days until it is deleted, also undecided, and until one loses its texts whose order is not known: its
    #: person could be found by an address alone.
    KEPT_DAYS, UNREAD_DAYS = 90, 7
    purge_rules = (
        PurgeRule("failed_at", KEPT_DAYS, keep=_REPLAY_WAITS),
        PurgeRule(
            "failed_at",
            UNREAD_DAYS,
            keep=f"order_id IS NOT NULL OR envelope = '{ERASED}' OR {_REPLAY_WAITS}",
            erased=erased_texts,
        ),
    )

    class Meta:
        db_table = "inbound_dead_letters"
        default_permissions = ("view",)
        permissions = [("resolve_inbounddeadletter", "Can replay and discard events")]
        indexes = [
            # the API's question about a repeated event
            models.Index(fields=["event_id"], name="inbound_dead_letters_event"),
            # the export and the erasure of a person
            models.Index(
                fields=["order_id"], name="inbound_dead_letters_order", condition=Q(order_id__isnull=False)
            ),
            GinIndex(fields=["address_hashes"], name="inbound_dead_letters_addresses"),
            # the consumer's query, once a second
            models.Index(
                fields=["consumer", "id"],
                name="inbound_dead_letters_replay",
                condition=REPLAY_REQUESTED.rows,
            ),
            # the admin's first page: letters that wait for a decision
            models.Index(
                fields=["-id"],
                name="inbound_dead_letters_open",
                condition=UNDECIDED.rows,
            ),
        ]

    def __str__(self) -> str:
        return f"{self.topic} {self.event_id}"


class RefusedEvent(models.Model):
    """The number of a sender's events of a topic that HTTP refused for a reason, which repeats no value.

    `events.consuming.refusals` writes the rows, and keeps the newest.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    sender = models.CharField(max_length=100)  # the name of the API token
    topic = models.CharField(max_length=100)
    reason = models.CharField(max_length=300)
    count = models.PositiveBigIntegerField()
    first_at = models.DateTimeField(db_default=Now(), editable=False)
    last_at = models.DateTimeField(db_default=Now(), editable=False)

    #: Days after its last refusal until a row is deleted.
    KEPT_DAYS = 90
    purge_rules = (PurgeRule("last_at", KEPT_DAYS),)

    class Meta:
        db_table = "refused_events"
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(fields=["sender", "topic", "reason"], name="refused_events_once")
        ]

    def __str__(self) -> str:
        return f"{self.topic} of {self.sender}"
