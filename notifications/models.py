"""The e-mails that customers must get, and the addresses that must not be written to."""

from __future__ import annotations

from collections.abc import Sequence

from django.conf import settings
from django.db import models
from django.db.models.functions import Now

from outbox.core.ids import new_id
from outbox.core.partitioned import Partitioned
from outbox.core.privacy import ERASED, ERASED_ADDRESS
from outbox.delivery.deliverable import Change, Deliverable, DeliverableQuerySet
from outbox.delivery.outcomes import Outcome, Policy, Status
from outbox.events.publish import publish_event

#: The events that an e-mail's end causes, with EMAIL_EVENTS.
TOPICS = {
    Status.SENT: "notification.email.sent.v1",
    Status.DEAD_LETTERED: "notification.email.dead_lettered.v1",
}


class EmailQuerySet(DeliverableQuerySet["EmailNotification"]):
    """The verbs, with a domain event in the transaction that settles an e-mail for good, if wanted."""

    def _write(self, decided: Sequence[tuple[EmailNotification, Outcome]], policy: Policy) -> list[Change]:
        changes = super()._write(decided, policy)
        if settings.EMAIL_EVENTS:
            for (mail, outcome), change in zip(decided, changes, strict=True):
                if topic := TOPICS.get(Status(change.now)):
                    publish_event(
                        aggregate_type="notification",
                        aggregate_id=mail.id,
                        event_type=topic,
                        sequence=len(mail.errors) + 1,  # grows with every try that failed
                        payload={
                            "notificationId": str(mail.id),
                            "orderId": str(mail.order_id),
                            "eventType": mail.event_type,
                            "provider": outcome.provider,
                        },
                    )
        return changes


class EmailNotification(Deliverable, Partitioned):
    """An e-mail, rendered when the order changed; the sender needs neither a template nor the order."""

    partition_interval = "month"
    unfinished = {
        "pending or failed": "status IN ('pending', 'failed')",
        "processing": "status = 'processing'",
        "dead-lettered": "status = 'dead_lettered'",
    }
    unfinished_help = "Resend them or give them up, in the admin or by POST /notifications/{id}/resend."
    owner_column = "order_id"
    # What is being sent right now is left to a second pass: its outcome would write its errors again.
    personal = f"recipient_email <> '{ERASED_ADDRESS}' AND status <> 'processing'"
    erased = {
        "recipient_email": f"'{ERASED_ADDRESS}'",
        "to_name": "''",
        "subject": f"'{ERASED}'",
        "body": "''",
        "body_text": "''",
        # A provider's words may repeat the address in any spelling; when, who and which code stay.
        "last_error": f"CASE WHEN last_error = '' THEN '' ELSE '{ERASED}' END",
        "errors": "(SELECT coalesce(jsonb_agg(one || "  # noqa: S608 - of our own constant
        f"jsonb_build_object('text', '{ERASED}') ORDER BY n), '[]')"
        " FROM jsonb_array_elements(errors) WITH ORDINALITY AS each (one, n))",
        "updated_at": "statement_timestamp()",
    }
    payload_fields = ("subject", "body", "body_text")
    claim_fields = (*Deliverable.claim_fields, "order", "event_type", "recipient_email", "to_name")

    # No foreign key in the database: it would make partition upkeep lock the shop's main table. The
    # transaction that writes both is the guarantee.
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

    objects = EmailQuerySet.as_manager()  # type: ignore[misc]  # as every model has its own

    delivered_at = models.DateTimeField(null=True, editable=False)
    bounced_at = models.DateTimeField(null=True, editable=False)
    complained_at = models.DateTimeField(null=True, editable=False)

    class Meta(Deliverable.Meta):
        db_table = "email_notifications"
        indexes = [
            *Deliverable.Meta.indexes,
            # "what did you send me?": API and admin search, newest first
            models.Index(fields=["recipient_email", "-id"], name="emailnotification_recipient"),
            # an order's notifications: API, admin
            models.Index(fields=["order"], name="emailnotification_order"),
        ]
        permissions = [
            ("resend_emailnotification", "Can resend e-mails"),
            ("discard_emailnotification", "Can give up e-mails"),
            ("force_provider", "Can force a provider open or closed"),
        ]

    def __str__(self) -> str:
        return f"{self.event_type} of order {self.order_id}"


class Suppression(models.Model):
    """An address that must not be written to, as a keyed hash. Lifting one deletes it."""

    class Reason(models.TextChoices):
        """Why."""

        HARD_BOUNCE = "hard_bounce", "the address bounced"
        COMPLAINT = "complaint", "its owner complained"
        MANUAL = "manual", "a person said so"

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    address_hash = models.CharField(max_length=64, unique=True, editable=False)
    reason = models.CharField(max_length=20, choices=Reason)
    provider = models.CharField(max_length=50, default="", blank=True, editable=False)
    notification_id = models.UUIDField(null=True, editable=False)  # whose e-mail told us
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
