"""Pauses: a row for each paused part."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

import structlog
from django.db import models, transaction
from django.db.models import Q
from django.db.models.functions import Now

from runtime.database.transactions import after_commit
from runtime.personal_data import refuse_addresses

log = structlog.get_logger(__name__)


class NotReconciled(Exception):
    """A restored database would send again the e-mails and events sent after the restored moment."""


class PauseQuerySet(models.QuerySet["Pause"]):
    def pause(
        self,
        *,
        parts: Iterable[str],
        reason: str,
        username: str,
        restored_to: dt.datetime | None = None,
    ) -> list[str]:
        """Pause parts, and return those that were not paused yet. The others keep their reason.

        `restored_to` is the moment to which the database was restored. Such a pause replaces a pause that
        came with the backup. Raise `AddressGiven` if the reason has an address.
        """
        refuse_addresses(reason)
        fresh: list[str] = []
        with transaction.atomic(using=self.db):
            for part in sorted(set(parts)):
                if restored_to is not None:
                    self.filter(Q(restored_to=None) | ~Q(restored_to=restored_to), part=part).delete()
                _, made = self.get_or_create(
                    part=part,
                    defaults={"reason": reason[:200], "username": username[:150], "restored_to": restored_to},
                )
                if made:
                    fresh.append(part)

        def tell() -> None:
            for part in fresh:
                log.warning("paused", part=part, reason=reason[:200], user=username)

        after_commit(tell, using=self.db)
        return fresh

    def resume(self, *, parts: Iterable[str], username: str, force: bool = False) -> list[str]:
        """End pauses, and return the parts that were paused.

        If the database was restored and `manage.py after_restore` has not run, raise `NotReconciled`, unless
        `force`.
        """
        with transaction.atomic(using=self.db):
            rows = list(self.filter(part__in=list(parts)).order_by("part").select_for_update())
            if not force and any(row.restored_to and not row.reconciled_at for row in rows):
                raise NotReconciled(
                    "the database was restored, and manage.py after_restore has not run, "
                    "so e-mails and events would be sent again: run it first"
                )
            self.filter(part__in=[row.part for row in rows]).delete()

        def tell() -> None:
            for row in rows:
                log.warning("resumed", part=row.part, user=username)

        after_commit(tell, using=self.db)
        return [row.part for row in rows]

    def reconcile(self) -> None:
        """Record that the logs since the restored moment were read."""
        self.filter(restored_to__isnull=False, reconciled_at=None).update(reconciled_at=Now())


class Pause(models.Model):
    """A pause of one part."""

    class Part(models.TextChoices):
        DELIVERY = "delivery", "e-mails are sent"
        RELAY = "relay", "events are published"
        CONSUMERS = "consumers", "events of other services are processed"

    part = models.CharField(primary_key=True, max_length=20, choices=Part)
    reason = models.CharField(max_length=200, default="", blank=True)
    username = models.CharField(max_length=150, default="", blank=True)
    paused_at = models.DateTimeField(db_default=Now(), editable=False)
    restored_to = models.DateTimeField(null=True, editable=False)
    reconciled_at = models.DateTimeField(null=True, editable=False)  # after_restore has read the logs

    objects = PauseQuerySet.as_manager()

    class Meta:
        db_table = "pauses"
        default_permissions = ("view",)
        permissions = [("set_pause", "Can pause and resume delivery, relay and consumers")]

    def __str__(self) -> str:
        return f"{self.part} paused since {self.paused_at:%Y-%m-%d %H:%M:%S}"
