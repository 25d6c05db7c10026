"""The page of one e-mail: its state with the button that helps, its trail, its content, and the rest."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any
from urllib.parse import quote

from django.contrib import admin, messages
from django.contrib.admin.templatetags.admin_urls import admin_urlname
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from notifications.admin.email_preview import mime_of
from notifications.admin.email_state import WAITING, read_states
from notifications.admin.timeline import lines_of
from notifications.bulk_actions import EmailAction, email_actions
from notifications.changes.trail import act_entry, email_entries
from notifications.models import CONTENT, EmailNotification, EmailTextVersion
from notifications.services import why_not_given_up
from notifications.suppressions import suppression_of
from runtime.audit import record
from runtime.database.clock import read_database_time
from runtime.models import AuditRow
from runtime.personal_data import AddressGiven, refuse_addresses
from web.actors import user_actor
from web.admin.base import RefreshedPage
from web.admin.rights import shops_of

#: The acts that give up the e-mail.
APART = ("give_up", "render_again")
#: So many e-mails of the order are read.
SIBLINGS = 200
#: Seconds between two refreshes of the page of an e-mail that a worker may still change.
REFRESH_SECONDS = 3


class DetailPage(RefreshedPage[EmailNotification]):
    part_template = "admin/notifications/emailnotification/_email.html"
    #: Folded at the end of the page.
    fieldsets = [
        (
            "E-mail",
            {
                "fields": [
                    "event_type",
                    "recipient_email",
                    "suppressed",
                    "to_name",
                    "locale",
                    "from_email",
                    "reply_to",
                    "profile",
                    "shop_copy",
                    "copy_of",
                    "texts",
                    "headers",
                ]
            },
        ),
        (
            "Delivery",
            {
                "fields": [
                    "tries",
                    "next_try",
                    "failed",
                    "last_error",
                    "claimed_at",
                    "provider",
                    "provider_message_id",
                    "sent_at",
                    "delivered_at",
                    "bounced_at",
                    "bounce_text",
                    "complained_at",
                ]
            },
        ),
        (
            "Identity",
            {"fields": ["id", "correlation_id", "idempotency_key", "created_at", "updated_at"]},
        ),
    ]

    def read_part(self, request: HttpRequest, email: EmailNotification) -> dict[str, Any]:
        return _read(request, email)

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: EmailNotification | None = None,
    ) -> HttpResponse:
        if obj is not None:
            context |= {"title": obj.subject, "subtitle": None, "refresh_seconds": REFRESH_SECONDS}
            context |= _read(request, obj)
        return super().render_change_form(request, context, add, change, form_url, obj)

    def act_view(self, request: HttpRequest, id: uuid.UUID) -> HttpResponse:
        """Resend, give up or render again one e-mail at once, and return to its page, or to its order's."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        action = email_actions().get(request.POST.get("action", ""))
        if action is None:
            raise Http404
        if not (self.has_view_permission(request) and request.user.has_perm(action.permission)):
            raise PermissionDenied
        email = get_object_or_404(EmailNotification.objects.defer("body", "body_text"), id=id)
        page = redirect("admin:notifications_emailnotification_change", id)
        reason = " ".join(request.POST.get("reason", "")[:200].split())
        try:
            refuse_addresses(reason)
        except AddressGiven as error:
            messages.error(request, f"Nothing was changed. {error}")
            return page
        with transaction.atomic():
            result = action.change_one([id])
            for act in result.acts:
                act.reason = reason
            record(*result.acts, by=user_actor(request))
        to = f"“{email.subject}” to {email.recipient_email or 'nobody'}"
        if result.acts:
            messages.success(request, f"{to} is {action.will_be}.")
        for reason in result.refusals:
            messages.warning(request, f"{to} is not {action.will_be}: {reason}.")
        if "to_order" in request.POST:
            order = EmailNotification._meta.get_field("order").related_model
            return redirect(admin_urlname(order._meta, SafeString("change")), email.order_id)
        return page

    @admin.display(description="suppression")
    def suppressed(self, email: EmailNotification) -> SafeString | str:
        if suppression_of(email.recipient_email) is None:
            return "not suppressed"
        url = f"{reverse('admin:notifications_suppression_changelist')}?q={quote(email.recipient_email)}"
        return format_html('suppressed (<a href="{}">why, and who can lift it</a>)', url)

    @admin.display(description="texts")
    def texts(self, email: EmailNotification) -> SafeString | str:
        if not email.text_versions:
            return "the originals"
        rows = EmailTextVersion.objects.select_related("text").defer("sentences", "text__sentences")
        versions = {str(version.id): version for version in rows.filter(id__in=email.text_versions)}
        return format_html_join(
            ", ",
            "{}",
            (
                (_linked(versions[id]) if id in versions else f"version {id}, which is not stored",)
                for id in email.text_versions
            ),
        )

    @admin.display(description="headers")
    def headers(self, email: EmailNotification) -> SafeString:
        headers = mime_of(email).items()
        lines = "\n".join(f"{name}: {value}" for name, value in headers)
        url = reverse("admin:notifications_emailnotification_mime", args=[email.id])
        return format_html(
            '<pre class="mail-text">{}</pre><a href="{}">Download the message (.eml)</a>', lines, url
        )

    @admin.display(description="shop copy of")
    def shop_copy(self, email: EmailNotification) -> SafeString | str:
        if email.shop_copy_of is None:
            return "–"
        url = reverse("admin:notifications_emailnotification_change", args=[email.shop_copy_of])
        return format_html('<a href="{}">{}</a>', url, email.shop_copy_of)

    @admin.display(description="copy of")
    def copy_of(self, email: EmailNotification) -> SafeString | str:
        if email.resend_of is None:
            return "–"
        url = reverse("admin:notifications_emailnotification_change", args=[email.resend_of])
        return format_html('<a href="{}">{}</a>', url, email.resend_of)


def _linked(version: EmailTextVersion) -> SafeString:
    url = reverse("admin:notifications_emailtext_change", args=[version.text_id])
    return format_html('<a href="{}?version={}">{}</a>', url, version.number, version)


def _read(request: HttpRequest, email: EmailNotification) -> dict[str, Any]:
    """Return what the upper part of the page shows, in at most five statements."""
    now = read_database_time()
    shops = shops_of(request)
    of_order = shops.only(EmailNotification.objects.filter(order_id=email.order_id))
    siblings = list(of_order.defer(*CONTENT).order_by("id")[:SIBLINGS])
    (state,) = read_states(request, [email], now=now, siblings=siblings)
    order = EmailNotification._meta.get_field("order").related_model
    references = order._default_manager.filter(id=email.order_id).values_list("reference", flat=True)
    acts = list(shops.only(AuditRow.objects.filter(subject_id=str(email.id))).order_by("id"))
    entries = [
        *email_entries(vars(email), acts, is_alone=True),
        *(act_entry(act, notification_id=email.id) for act in acts),
    ]
    return {
        "email": email,
        "state": state,
        "order_name": references.first() or f"…{str(email.order_id)[-8:]}",
        "copies": [other for other in reversed(siblings) if other.resend_of == email.id],
        "lines": lines_of(sorted(entries, key=lambda entry: (entry.kind == "plan", entry.at)), here=email.id),
        "apart": _dangerous(request, email, now=now),
        "is_waiting": email.status in WAITING,
    }


def _dangerous(
    request: HttpRequest, email: EmailNotification, *, now: dt.datetime
) -> list[tuple[str, EmailAction]]:
    """Return the acts that give up the e-mail, if it may be given up now."""
    if why_not_given_up(email=email, now=now) is not None:
        return []
    return [
        (name, action)
        for name, action in email_actions().items()
        if name in APART and request.user.has_perm(action.permission)
    ]
