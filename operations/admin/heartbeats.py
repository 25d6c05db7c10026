"""The admin of heartbeats: the time at which each regular job last ran."""

from __future__ import annotations

from django.contrib import admin

from runtime.models import Heartbeat
from web.admin.base import TriageAdmin


@admin.register(Heartbeat)
class HeartbeatAdmin(TriageAdmin[Heartbeat]):
    list_display = ["name", "beat_at"]
    ordering = ["name"]
