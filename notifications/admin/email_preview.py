"""The stored HTML of one e-mail, for the frame on its page."""

from __future__ import annotations

import uuid

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse

from notifications.models import EmailNotification

POLICY = "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'"


class PreviewPage(admin.ModelAdmin[EmailNotification]):
    def preview_view(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        """Answer with the stored HTML. Its policy forbids it to load or run anything."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        body = EmailNotification.objects.filter(id=id).values_list("body", flat=True).first()
        if body is None:
            raise Http404
        return HttpResponse(
            body, headers={"Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff"}
        )
