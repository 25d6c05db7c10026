"""A row that must be delivered: the abstract model with its columns, CHECK constraints and indexes.

Only the methods of `outbox.delivery.rows.queryset` write `status`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from outbox.database.ids import new_id
from outbox.delivery.rows.outcomes import DUE_STATES, LEASE_EXPIRED, Status


class Deliverable(models.Model):
    """The columns of a row that must be delivered.

    A subclass adds the payload, the recipient, and a manager with the methods of `DeliverableQuerySet`.
    """

    #: Columns too large to load when only the state matters. A subclass lists its own.
    payload_fields: tuple[str, ...] = ()
    #: Columns that claimed and settled rows have besides id, status and token. A subclass adds its own.
    claim_fields: tuple[str, ...] = (
        "retry_count",
        "max_retries",
        "errors",
        "provider",
        "correlation_id",
        "traceparent",
        "resent_at",
    )

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    status = models.CharField(max_length=20, choices=Status, default=Status.PENDING)

    retry_count = models.PositiveIntegerField(default=0)
    max_retries = models.PositiveIntegerField(default=3)
    next_attempt_at = models.DateTimeField(db_default=Now())
    claimed_at = models.DateTimeField(null=True, editable=False)
    claim_token = models.UUIDField(null=True, editable=False)
    last_error = models.TextField(default="", blank=True)
    # The fingerprint of `last_error` (fingerprint.py). Null without an error, or if release 0.1.0 wrote the
    # error.
    error_fingerprint = models.CharField(max_length=16, null=True, editable=False)
    errors = models.JSONField(default=list, blank=True)  # attempts.py describes an entry

    provider = models.CharField(max_length=50, default="", blank=True)
    provider_message_id = models.CharField(max_length=255, default="", blank=True)
    correlation_id = models.CharField(max_length=128, default="", blank=True)
    traceparent = models.CharField(max_length=64, default="", blank=True)

    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)
    sent_at = models.DateTimeField(null=True, editable=False)
    resent_at = models.DateTimeField(null=True, editable=False)  # when a person last resent the row

    # The attributes below belong to a claimed row and are not stored.
    #: The state in which `claim` found the row, its place in the batch, the database's time (epoch seconds),
    #: and for how many seconds the row had been due.
    was: str = ""
    place: int = 0
    claimed_epoch: float = 0.0
    age_seconds: float = 0.0
    #: Retries that the row's last failure used up, as judged after the claim.
    charge: int = 0
    #: No provider may be asked after this moment of the process's monotonic clock, nor while the process
    #: stops.
    deadline_at: float = math.inf
    should_stop: Callable[[], bool] = staticmethod(lambda: False)

    class Meta:
        abstract = True
        indexes = [
            # for claim() and the backlog's age
            models.Index(
                fields=["next_attempt_at"], name="%(class)s_due", condition=Q(status__in=DUE_STATES)
            ),
            # for recover()
            models.Index(
                fields=["claimed_at"], name="%(class)s_lease", condition=Q(status=Status.PROCESSING)
            ),
            # for the admin's dead letters, newest first
            models.Index(fields=["-id"], name="%(class)s_dead", condition=Q(status=Status.DEAD_LETTERED)),
            # for the dead letters by cause
            models.Index(
                fields=["error_fingerprint", "id"],
                name="%(class)s_causes",
                condition=Q(status=Status.DEAD_LETTERED),
            ),
        ]
        constraints = [
            models.CheckConstraint(condition=Q(status__in=Status.values), name="%(class)s_status_known"),
            models.CheckConstraint(
                condition=Q(status=Status.SENT, sent_at__isnull=False)
                | (~Q(status=Status.SENT) & Q(sent_at__isnull=True)),
                name="%(class)s_sent_has_its_time",
            ),
            models.CheckConstraint(
                condition=Q(status=Status.PROCESSING, claim_token__isnull=False, claimed_at__isnull=False)
                | (~Q(status=Status.PROCESSING) & Q(claim_token__isnull=True, claimed_at__isnull=True)),
                name="%(class)s_claim_is_whole",
            ),
        ]

    def is_sendable(self) -> bool:
        """Return whether a provider may be asked now."""
        return not self.should_stop() and time.monotonic() <= self.deadline_at

    @property
    def is_sent_alone(self) -> bool:
        """Whether the row may be what kills its workers and has only one attempt left."""
        lost = bool(self.errors) and self.errors[-1].get("code") == LEASE_EXPIRED
        return lost and self.retry_count >= self.max_retries
