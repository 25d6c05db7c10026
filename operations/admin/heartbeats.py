"""The admin of heartbeats: the time at which each regular job last ran."""

from __future__ import annotations

from django.contrib import admin

from outbox.admin.shared.base import TriageAdmin
from outbox.models import Heartbeat


@admin.register(Heartbeat)
class HeartbeatAdmin(TriageAdmin[Heartbeat]):
    list_display = ["name", "beat_at"]
    ordering = ["name"]
