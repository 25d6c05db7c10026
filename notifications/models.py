"""The e-mails that are owed to customers, and the suppressed addresses."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import structlog
from django.conf import settings
from django.contrib.postgres.indexes import BrinIndex, HashIndex
from django.db import DatabaseError, connections, models, transaction
from django.db.models import F, Q
from django.db.models.expressions import RawSQL
from django.db.models.functions import Coalesce, Now, Upper

from notifications.retention import EMAIL_RETENTION
from outbox.database.ids import new_id
from outbox.database.partitioned import Partitioned
from outbox.delivery.rows.deliverable import Deliverable
from outbox.delivery.rows.outcomes import DUE_STATES, Outcome, Status
from outbox.delivery.rows.queryset import DeliverableQuerySet
from outbox.delivery.rows.settlements import Transition
from outbox.events.publishing.publish import write_event

log = structlog.get_logger(__name__)

#: The topics of the events that EMAIL_EVENTS publishes, by the e-mail's new state.
TOPICS = {
    Status.SENT: "notification.email.sent.v1",
    Status.DEAD_LETTERED: "notification.email.dead_lettered.v1",
}


def _by_minute(column: str) -> RawSQL:
    """Return the expression of an index by minute, so that further rows of a minute change no entry."""
    return RawSQL(f"(date_bin('1 minute', {column}, '2000-01-01 00:00+00'))", [])  # noqa: S611 - our columns


#: The time of the last failed attempt, as stored: text in ISO 8601 and UTC.
LAST_ERROR_AT = RawSQL("""((errors -> -1 ->> 'at') COLLATE "C")""", [])


def _publish_end(mail: EmailNotification, outcome: Outcome, topic: str) -> None:
    write_event(
        aggregate_type="notification",
        aggregate_id=mail.id,
        event_type=topic,
        sequence=len(mail.errors) + 1,  # grows with each failed attempt
        payload={
            "notificationId": str(mail.id),
            "orderId": str(mail.order_id),
            "eventType": mail.event_type,
            "provider": outcome.provider,
        },
    )


class EventTimes(NamedTuple):
    """A provider's times of an e-mail's delivery, bounce and complaint."""

    id: uuid.UUID
    delivered_at: dt.datetime | None = None
    bounced_at: dt.datetime | None = None
    complained_at: dt.datetime | None = None


class EmailNotificationQuerySet(DeliverableQuerySet["EmailNotification"]):
    """With EMAIL_EVENTS, write an event in the transaction that makes an e-mail `sent` or a dead letter."""

    def _write(self, decided: Sequence[tuple[EmailNotification, Outcome]]) -> list[Transition]:
        changes = super()._write(decided)
        if settings.EMAIL_EVENTS:
            ended = [
                (mail, outcome, topic)
                for (mail, outcome), change in zip(decided, changes, strict=True)
                if (topic := TOPICS.get(Status(change.now)))
            ]
            try:
                with transaction.atomic(using=self.db):
                    for mail, outcome, topic in ended:
                        _publish_end(mail, outcome, topic)
            except DatabaseError:  # keep the outcomes: a provider may have accepted these e-mails
                if connections[self.db].needs_rollback:
                    raise  # the whole transaction is lost, so the caller settles again
                log.exception("events of e-mails not written", ids=[str(mail.id) for mail, _, _ in ended])
        return changes

    def failing(self) -> EmailNotificationQuerySet:
        """Return the e-mails that have failed and are unfinished an hour after they were due first."""
        first_due = Coalesce("resent_at", "created_at")
        rows = self.filter(status__in=DUE_STATES).exclude(errors=[]).annotate(first_due=first_due)
        return rows.filter(first_due__lt=Now() - dt.timedelta(hours=1))

    def keep_earliest(self, times: Iterable[EventTimes]) -> None:
        """Write the times that are earlier than the stored ones. The caller has locked the rows by id."""
        news = [time for time in times if any(time[1:])]
        if not news:
            return
        with connections[self.db].cursor() as cursor:
            cursor.execute(
                """
                UPDATE email_notifications AS row SET
                    delivered_at = least(row.delivered_at, new.delivered_at),
                    bounced_at = least(row.bounced_at, new.bounced_at),
                    complained_at = least(row.complained_at, new.complained_at),
                    updated_at = statement_timestamp()
                FROM unnest(%s::uuid[], %s::timestamptz[], %s::timestamptz[], %s::timestamptz[])
                    AS new (id, delivered_at, bounced_at, complained_at)
                WHERE row.id = new.id AND row.id = ANY(%s::uuid[])
                  AND (least(row.delivered_at, new.delivered_at), least(row.bounced_at, new.bounced_at),
                       least(row.complained_at, new.complained_at))
                      IS DISTINCT FROM (row.delivered_at, row.bounced_at, row.complained_at)
                """,
                [*(list(column) for column in zip(*news, strict=True)), [new.id for new in news]],
            )


class EmailNotification(Deliverable, Partitioned):
    """An e-mail, rendered when the order changed, so that sending needs neither a template nor the order."""

    retention = EMAIL_RETENTION
    payload_fields = ("subject", "body", "body_text")
    claim_fields = (*Deliverable.claim_fields, "order", "event_type", "recipient_email", "to_name")

    # A foreign key in the database would make partition upkeep lock the shop's main table. The transaction
    # that writes both rows guarantees that the order exists.
    order = models.ForeignKey(
        "orders.Order",
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="notifications",
    )
    event_type = models.CharField(max_length=50)
    recipient_email = models.CharField(max_length=255)
    to_name = models.CharField(max_length=255, default="", blank=True)
    locale = models.CharField(max_length=20, default="en")
    subject = models.CharField(max_length=255)
    body = models.TextField()
    body_text = models.TextField()
    idempotency_key = models.CharField(max_length=255)
    resend_of = models.UUIDField(null=True, editable=False)  # the e-mail that this is a copy of

    objects = EmailNotificationQuerySet.as_manager()

    delivered_at = models.DateTimeField(null=True, editable=False)
    bounced_at = models.DateTimeField(null=True, editable=False)
    complained_at = models.DateTimeField(null=True, editable=False)

    class Meta(Deliverable.Meta):
        db_table = "email_notifications"
        indexes = [
            *Deliverable.Meta.indexes,
            # a person's e-mails, newest first (API, the admin's list and search, personal data), all by
            # `recipient_email__iexact`
            models.Index(Upper("recipient_email"), F("id").desc(), name="emailnotification_any_case"),
            # an order's notifications: API, admin
            models.Index(fields=["order"], name="emailnotification_order"),
            # the admin's search box
            HashIndex(fields=["correlation_id"], name="emailnotification_correlated"),
            HashIndex(
                fields=["provider_message_id"],
                name="emailnotification_at_provider",
                condition=~Q(provider_message_id=""),
            ),
            # the lists of suppressed and discarded e-mails, newest first (API, admin), which are few
            *(
                models.Index(fields=["-id"], name=f"emailnotification_{status}", condition=Q(status=status))
                for status in ("suppressed", "discarded")
            ),
            # the sums of each minute: e-mails sent, delivered and bounced in it
            BrinIndex(
                *(_by_minute(column) for column in ("sent_at", "delivered_at", "bounced_at")),
                name="emailnotification_minutes",
                autosummarize=True,
                pages_per_range=64,
            ),
            # the sums of each minute: the attempts that failed in it. An index on updated_at would make
            # every update write to every index.
            models.Index(LAST_ERROR_AT, name="emailnotification_errors", condition=~Q(errors=[])),
        ]
        permissions = [
            ("resend_emailnotification", "Can resend e-mails"),
            ("discard_emailnotification", "Can give up e-mails"),
            ("copy_emailnotification", "Can send copies of e-mails"),
            ("force_provider", "Can force a provider open or closed"),
        ]

    def __str__(self) -> str:
        return f"{self.event_type} of order {self.order_id}"

    @property
    def failed_at(self) -> dt.datetime | None:
        """The time of a dead letter's last failed attempt, or None if it had none or is not a dead letter."""
        at: str | None = self.last_error_at  # type: ignore[attr-defined] # the query annotates LAST_ERROR_AT
        if self.status != Status.DEAD_LETTERED or not at:
            return None
        try:
            return dt.datetime.fromisoformat(at)
        except ValueError:
            return None


class Suppression(models.Model):
    """A suppressed address, as a keyed hash. Lifting the suppression deletes the row."""

    class Reason(models.TextChoices):
        HARD_BOUNCE = "hard_bounce", "the address bounced"
        COMPLAINT = "complaint", "its owner complained"
        MANUAL = "manual", "a person said so"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    address_hash = models.CharField(max_length=64, unique=True, editable=False)
    reason = models.CharField(max_length=20, choices=Reason)
    provider = models.CharField(max_length=50, default="", blank=True, editable=False)
    notification_id = models.UUIDField(null=True, editable=False)  # the e-mail that gave the reason
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        db_table = "suppressions"
        default_permissions = ("view", "add")
        permissions = [("lift_suppression", "Can lift suppressions")]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(reason__in=["hard_bounce", "complaint", "manual"]),
                name="suppressions_reason_known",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.address_hash[:12]}… ({self.reason})"
