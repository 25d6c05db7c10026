"""The stored HTML of one e-mail for the frame on its page, and the e-mail as a MIME message."""

from __future__ import annotations

import uuid
from email.message import Message
from email.utils import format_datetime
from urllib.parse import urlsplit

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse

from notifications.content.profiles import find_profile
from notifications.models import EmailNotification
from notifications.providers.base import build_message
from notifications.providers.headers import encode_headers

POLICY = "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'"


class PreviewPage(admin.ModelAdmin[EmailNotification]):
    def preview_view(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        row = EmailNotification.objects.filter(id=id).values_list("body", "profile").first()
        if row is None:
            raise Http404
        body, profile = row
        return framed(body, image=find_profile(profile).logo_url)

    def mime_view(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        """Answer with the message as a file. The provider adds its own headers when it sends it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        email = EmailNotification.objects.filter(id=id).first()
        if email is None:
            raise Http404
        name = f'attachment; filename="{email.event_type}-{email.id}.eml"'
        headers = {"Content-Disposition": name}
        return HttpResponse(mime_of(email).as_bytes(), "message/rfc822", headers=headers)


def mime_of(email: EmailNotification) -> Message:
    """Build the message as providers get it. Its Date is when the e-mail was sent, or else saved."""
    built = build_message(email, None)
    encode_headers(built)
    message: Message = built.message()
    del message["Date"]
    message["Date"] = format_datetime(email.sent_at or email.created_at)
    return message


def allow_origin(request: HttpRequest, url: str) -> None:
    """Let the page of a request, which previews e-mails, load images of the origin of a profile's logo."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.netloc:
        origin = f"https://{parts.netloc}".replace(";", "%3B").replace(",", "%2C")
        request.__dict__["image_origin"] = origin


def framed(html: str, *, image: str = "") -> HttpResponse:
    """Answer with an e-mail's HTML. The policy lets it run nothing, and load nothing but the `image`."""
    policy = POLICY
    if image:  # these two end a source in a policy
        policy = POLICY.replace("data:", f"data: {image.replace(';', '%3B').replace(',', '%2C')}")
    return HttpResponse(
        html, headers={"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}
    )
