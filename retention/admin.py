"""The admin of partitions."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from retention.models import DetachedPartition
from retention.partitions.listing import list_partitions
from web.admin.base import TriageAdmin
from web.admin.menu import MenuItem


@admin.register(DetachedPartition)
class PartitionAdmin(TriageAdmin[DetachedPartition]):
    """Lists every partition that exists or existed, and the rows that hold one back."""

    menu = MenuItem(75, "Partitions")
    ordering = ["name"]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the partitions of the catalogue and of the records. Django's list has only the records."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "title": "Partitions",
            "opts": self.opts,
            "lines": list_partitions(using="default")[::-1],
            "media": self.media,
        }
        return TemplateResponse(request, "admin/retention/detachedpartition/change_list.html", context)
