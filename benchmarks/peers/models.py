"""The peers' order, and the mail of the one-task-for-each-mail design."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """The order that the peers' change updates."""

    id = models.UUIDField(primary_key=True)
    status = models.CharField(max_length=20, default="pending")
    updated_at = models.DateTimeField(auto_now=True)

    class Meta:
        app_label = "peers"

    def __str__(self) -> str:
        return str(self.id)


class Mail(models.Model):
    """One mail. A task gets its id and sends it."""

    id = models.BigAutoField(primary_key=True)
    recipient = models.CharField(max_length=255)
    subject = models.CharField(max_length=255)
    html = models.TextField()
    text = models.TextField()
    status = models.CharField(max_length=20, default="pending")
    sent_at = models.DateTimeField(null=True)

    class Meta:
        app_label = "peers"

    def __str__(self) -> str:
        return str(self.id)
