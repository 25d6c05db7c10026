"""Published domain events. Each state of an event, and each change of state, is a queryset method."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Self

import structlog
from django.conf import settings
from django.db import connections, models, transaction
from django.db.models import F, Func, Q, Value
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from events.event_ids import event_ids
from events.models.envelope_sql import (
    BLOCKING,
    COLUMNS,
    DUE_SQL,
    ENVELOPE,
    LOG_IDS,
    MARK_PUBLISHED,
    OutgoingEvent,
)
from events.models.states import (
    BLOCKED,
    DEAD,
    DISCARD,
    PUBLISHED,
    REPUBLISH,
    STUCK,
    UNPUBLISHED,
    EventTransition,
)
from retention.partitioned import ChosenText, Partitioned, RetentionRules
from runtime.database.ids import id_floor, new_id
from runtime.database.transactions import after_commit

log = structlog.get_logger(__name__)

SHARDS = 64

_INT = attrgetter("int")  # UUIDs compare slowly

#: In SQL, the members of a payload that lead to a person: what a shop says of a parcel.
_TRACKING = "ARRAY['carrier', 'trackingNumber', 'trackingUrl']"
#: In SQL, an event whose caller's idempotency key has an address, and its `metadata` with another key.
_KEY_WITH_ADDRESS = "metadata->>'idempotencyKey' LIKE '%@%'"
_KEY_ERASED = "jsonb_set(metadata, '{idempotencyKey}', to_jsonb(id::text))"


class DomainEventQuerySet(models.QuerySet["DomainEvent"]):
    """Filters by the states of `events.models.states`, and the verbs that change a state."""

    def unpublished(self) -> Self:
        """Filter the events that the relay still has to publish."""
        return self.filter(UNPUBLISHED.rows)

    def failing(self) -> Self:
        """Filter the unpublished events that the broker has refused at least once."""
        return self.unpublished().filter(retry_count__gt=0)

    def blocked(self) -> Self:
        """Filter the events that block later events of their aggregate.

        They wait for a retry, or are dead letters that nobody has republished or discarded.
        """
        return self.filter(BLOCKED.rows)

    def dead(self) -> Self:
        """Filter the dead letters that nobody has republished or discarded."""
        return self.filter(DEAD.rows)

    def published(self) -> Self:
        """Filter the events that the broker has taken."""
        return self.filter(PUBLISHED.rows)

    def outgoing(self, *, limit: int | None = None) -> Iterator[OutgoingEvent]:
        """Yield the events in the relay's order, with their envelopes.

        If `limit` is None, read the rows a few at a time through a server-side cursor.
        """
        envelope = RawSQL(ENVELOPE, [settings.EVENT_SOURCE], output_field=models.TextField())  # noqa: S611
        rows = self.annotate(envelope=envelope, **LOG_IDS).order_by("position").values_list(*COLUMNS)
        for row in rows.iterator() if limit is None else rows[:limit]:
            yield _outgoing(row)

    def blocking(self, *, shards: Iterable[int], now: dt.datetime) -> list[uuid.UUID]:
        """Return the aggregates of these shards with events that hold back later ones (see `blocked`)."""
        with connections[self.db].cursor() as cursor:
            cursor.execute(BLOCKING, [sorted(shards), last_id(now)])
            return [aggregate_id for (aggregate_id,) in cursor.fetchall()]

    def due(
        self,
        *,
        shards: Iterable[int],
        now: dt.datetime,
        since: int,
        without: list[uuid.UUID],
        held: list[str],
        limit: int,
    ) -> list[OutgoingEvent]:
        """Return the next unpublished events from the position `since` on (see `outgoing`).

        Leave out the aggregates `without` and the topics `held`.
        """
        with connections[self.db].cursor() as cursor:
            values: list[Any] = [sorted(shards), last_id(now), str(since), without, held, str(limit)]
            cursor.execute(DUE_SQL, [settings.EVENT_SOURCE, *values])
            return [_outgoing(row) for row in cursor.fetchall()]

    def mark_published(self, *, ids: Iterable[uuid.UUID]) -> None:
        """Record that the broker has taken these events."""
        by_time = sorted(ids, key=_INT)
        if not by_time:
            return
        with connections[self.db].cursor() as cursor:
            cursor.execute(MARK_PUBLISHED, [by_time, by_time[0], by_time[-1]])

    def refuse(self, *, event_id: uuid.UUID, reason: str, wait: dt.timedelta | None) -> None:
        """Record that the broker refused an event. Retry it after `wait`; if that is None, make it dead."""
        event = self.unpublished().filter(id=event_id)
        if wait is None:
            event.update(last_error=reason, dead_lettered_at=Now())
        else:
            event.update(last_error=reason, retry_count=F("retry_count") + 1, next_attempt_at=Now() + wait)

    def explain_wait(self, *, ids: Iterable[uuid.UUID], reason: str) -> None:
        """Record why unpublished events wait, without using up a retry."""
        self.unpublished().filter(id__in=sorted(ids)).exclude(last_error=reason).update(last_error=reason)

    def republish(self, *, ids: Iterable[uuid.UUID]) -> list[uuid.UUID]:
        """Retry failing and dead events at once, with all their retries. Return the ids of those changed."""
        lines = self._resolve(ids, REPUBLISH)

        def tell() -> None:
            for line in lines.values():
                log.info("event republished", **line)

        after_commit(tell, using=self.db)
        return list(lines)

    def discard(self, *, ids: Iterable[uuid.UUID]) -> list[uuid.UUID]:
        """Discard dead events, so that the relay publishes their aggregates' later ones. Return their ids."""
        lines = self._resolve(ids, DISCARD)

        def tell() -> None:
            for line in lines.values():
                log.info("event discarded", **line)

        after_commit(tell, using=self.db)
        return list(lines)

    def _resolve(
        self, ids: Iterable[uuid.UUID], transition: EventTransition
    ) -> dict[uuid.UUID, dict[str, str]]:
        """Change those of `ids` that are in the state. Return the fields of a log line for each."""
        columns = ("id", "event_type", "order", "aggregate_id", "correlation", "trace")
        with transaction.atomic(using=self.db):
            rows = self.filter(transition.before.rows, id__in=list(ids)).order_by("id").annotate(**LOG_IDS)
            locked = rows.select_for_update().values_list(*columns)
            lines = {
                id: event_ids(
                    event_id=id,
                    event_type=topic,
                    order_id=order or "",
                    aggregate_id=aggregate_id,
                    correlation_id=correlation or "",
                    traceparent=trace or "",
                )
                for id, topic, order, aggregate_id, correlation, trace in locked
            }
            self.filter(id__in=list(lines)).update(**transition.columns)
        return lines


def _outgoing(row: Sequence[Any]) -> OutgoingEvent:
    """Return the event in a row of `COLUMNS`."""
    id, aggregate_id, topic, retries, position, correlation, trace, order, text = row
    ids = (id, aggregate_id, topic, retries, position)
    return OutgoingEvent(*ids, correlation or "", trace or "", order or "", text.encode())


def last_id(now: dt.datetime) -> uuid.UUID:
    """Return an upper limit of ids, which prunes the partitions of future days.

    Planning those would take most of a query's time. The CHECK of a partition keeps `created_at` within a day
    of its ids, so no id is more than two days ahead of the database's clock. `now` may be a day old.
    """
    return id_floor(now + dt.timedelta(days=3))


class DomainEvent(Partitioned):
    """A domain event for other services, written with the change that it reports.

    The relay publishes the events of a shard in the order of `position`. A payload has no name or address.
    """

    retention = RetentionRules(
        interval="day",
        unfinished={
            "not published": UNPUBLISHED.sql,
            "dead-lettered": DEAD.sql,
        },
        unfinished_help="They leave after the relay has published them or an operator has discarded them.",
        owner_column="aggregate_id",
        # A parcel's tracking leads to a person, and a caller's idempotency key may contain any text.
        personal=f"(payload ?| {_TRACKING} OR {_KEY_WITH_ADDRESS})",
        erased={
            "payload": f"payload - {_TRACKING}",
            "metadata": f"CASE WHEN {_KEY_WITH_ADDRESS} THEN {_KEY_ERASED} ELSE metadata END",
        },
        chosen=ChosenText("metadata", has_address=_KEY_WITH_ADDRESS, erased=_KEY_ERASED),
    )

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    aggregate_type = models.CharField(max_length=50)
    aggregate_id = models.UUIDField()
    event_type = models.CharField(max_length=100)  # the topic: order.order.paid.v1
    version = models.PositiveSmallIntegerField(default=1)  # of the payload's schema
    sequence = models.PositiveIntegerField()  # the aggregate's own version
    payload = models.JSONField()
    # The envelope's traceId, correlationId, idempotencyKey, userId and traceparent.
    metadata = models.JSONField(default=dict)

    # A separate sequence: identity columns of partitioned tables need PostgreSQL 17.
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

    objects = DomainEventQuerySet.as_manager()

    class Meta:
        db_table = "outbox_events"
        permissions = [("resolve_domainevent", "Can republish and discard events")]
        indexes = [
            # the relay's next rows
            models.Index(fields=["position"], name="outbox_events_next", condition=UNPUBLISHED.rows),
            # events that hold back later ones of their aggregate: the relay, in each round; triage
            models.Index(fields=["shard"], name="outbox_events_stuck", condition=STUCK.rows),
            # GET /orders/{id}/events
            models.Index(fields=["aggregate_id", "sequence"], name="outbox_events_aggregate"),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(shard__lt=SHARDS), name="outbox_events_shard_known"),
            models.CheckConstraint(
                condition=Q(published_at__isnull=True) | Q(dead_lettered_at__isnull=True),
                name="outbox_events_published_is_not_dead",
            ),
            models.CheckConstraint(
                condition=Q(discarded_at__isnull=True) | Q(dead_lettered_at__isnull=False),
                name="outbox_events_discarded_was_dead",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.event_type} #{self.sequence} of {self.aggregate_id}"
