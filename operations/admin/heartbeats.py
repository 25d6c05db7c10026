"""The admin of heartbeats: when each regular job last ran, and when each process last beat."""

from __future__ import annotations

from django.contrib import admin, messages
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

from runtime.conditions import PROCESSES, QUIET_SECONDS
from runtime.models import AuditRow, Heartbeat
from web.admin.acts import record_act
from web.admin.base import TriageAdmin
from web.admin.tiles import FrontPage, panel


@admin.register(Heartbeat)
class HeartbeatAdmin(TriageAdmin[Heartbeat]):
    list_display = ["process_or_job", "beat_at", "release"]
    ordering = ["kind", "name"]
    actions = ["forget"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Heartbeat]:
        """Leave out the end of the last pause, which ages of e-mails depend on."""
        return super().get_queryset(request).exclude(name=Heartbeat.DELIVERY_RESUMED)

    @admin.display(ordering="kind")
    def process_or_job(self, row: Heartbeat) -> str:
        return row.title

    def has_forget_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("runtime.delete_heartbeat")

    @admin.action(description="Forget: it was removed for good", permissions=["forget"])
    def forget(self, request: HttpRequest, rows: QuerySet[Heartbeat]) -> None:
        """Delete the rows. That of a process or job that still runs comes back with its next beat."""
        with transaction.atomic():
            titles = [row.title for row in rows]
            rows.delete()
            for title in titles:
                record_act(request, kind=AuditRow.Kind.SETUP, act="Forgot.", subject=title)
        self.message_user(request, f"Forgot {', '.join(titles)}.", messages.SUCCESS)


@panel(70)
def processes(request: HttpRequest) -> SafeString:
    """Return the first page's table of the processes."""
    if not request.user.has_perm("runtime.view_heartbeat"):
        return SafeString("")
    rows = [
        row | {"is_quiet": row["seconds"] > QUIET_SECONDS} for row in FrontPage.of(request).facts[PROCESSES]
    ]
    return render_to_string("admin/operations/_processes.html", {"processes": rows}, request=request)
