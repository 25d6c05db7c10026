"""Pauses: a row for each paused part."""

from __future__ import annotations

from django.db import models
from django.db.models.functions import Now


class Pause(models.Model):
    """A pause of one part. operations.pauses begins and ends it."""

    class Part(models.TextChoices):
        DELIVERY = "delivery"
        RELAY = "relay"
        CONSUMERS = "consumers"

    part = models.CharField(primary_key=True, max_length=20, choices=Part)
    reason = models.CharField(max_length=200, default="", blank=True)
    username = models.CharField(max_length=150, default="", blank=True)
    paused_at = models.DateTimeField(db_default=Now(), editable=False)
    restored_to = models.DateTimeField(null=True, editable=False)  # the moment of a restored backup
    reconciled_at = models.DateTimeField(null=True, editable=False)  # after_restore has read the logs

    class Meta:
        db_table = "pauses"
        default_permissions = ("view",)
        permissions = [("set_pause", "Can pause and resume delivery, relay and consumers")]

    def __str__(self) -> str:
        return f"{self.part} paused since {self.paused_at:%Y-%m-%d %H:%M:%S}"
