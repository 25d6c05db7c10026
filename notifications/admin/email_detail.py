"""The page of one e-mail: its delivery, the errors of its attempts, and its content."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from notifications.admin.email_preview import mime_of
from notifications.bulk_actions import GIVE_UP, RESEND
from notifications.copies import why_not_copied
from notifications.manual_actions import held_until
from notifications.models import EmailNotification, EmailTextVersion
from notifications.services import why_not_given_up, why_not_resent
from notifications.states.transitions import Status
from notifications.suppressions import suppression_of
from runtime.database.clock import read_database_time
from web.admin.base import ago


class DetailPage(admin.ModelAdmin[EmailNotification]):
    fieldsets = [
        (
            "E-mail",
            {
                "fields": [
                    "state",
                    "event_type",
                    "recipient_email",
                    "suppressed",
                    "to_name",
                    "locale",
                    "order_link",
                    "from_email",
                    "reply_to",
                    "profile",
                    "shop_copy",
                ]
            },
        ),
        ("Delivery", {"fields": ["tries", "next_try", "failed", "held", "last_error", "error_table"]}),
        (
            "Provider",
            {
                "fields": [
                    "provider",
                    "provider_message_id",
                    "sent_at",
                    "delivered_at",
                    "bounced_at",
                    "complained_at",
                ]
            },
        ),
        ("Content", {"fields": ["subject", "texts", "preview", "text", "headers"]}),
        (
            "Identity",
            {
                "fields": [
                    "id",
                    "correlation_id",
                    "idempotency_key",
                    "copy_of",
                    "created_at",
                    "updated_at",
                    "claimed_at",
                ]
            },
        ),
    ]

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,
        change: bool = False,
        form_url: str = "",
        obj: EmailNotification | None = None,
    ) -> HttpResponse:
        """Add the buttons of the actions that would change the e-mail now, and until when it is held."""
        if obj is not None:
            context |= _acts(request, obj)
        return super().render_change_form(request, context, add, change, form_url, obj)

    @admin.display(description="address")
    def suppressed(self, email: EmailNotification) -> SafeString | str:
        if (suppression := suppression_of(email.recipient_email)) is None:
            return "not suppressed"
        url = f"{reverse('admin:notifications_suppression_changelist')}?q={quote(email.recipient_email)}"
        return format_html('suppressed: {} (<a href="{}">lift</a>)', suppression.get_reason_display(), url)

    @admin.display(description="held")
    def held(self, email: EmailNotification) -> SafeString | str:
        until = held_until(email)
        if until is None or until <= read_database_time():
            return "no"
        words = "the provider may have accepted the last attempt; waits for its webhook until"
        return format_html("{} {} ({})", words, f"{until:%H:%M:%S}", ago(until))

    @admin.display(description="failed attempts")
    def error_table(self, email: EmailNotification) -> SafeString | str:
        if not email.errors:
            return "none"
        lines = format_html_join(
            "",
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            (
                (
                    str(error.get("at", ""))[:19].replace("T", " "),
                    error.get("provider"),
                    error.get("outcome"),
                    error.get("text"),
                )
                for error in email.errors
            ),
        )
        head = "<tr><th>Time (UTC)</th><th>Provider</th><th>Outcome</th><th>Answer</th></tr>"
        return format_html('<table class="errors">' + head + "{}</table>", lines)

    @admin.display(description="as HTML")
    def preview(self, email: EmailNotification) -> SafeString:
        # The frame can neither load nor run anything: see POLICY in email_preview.py.
        url = reverse("admin:notifications_emailnotification_preview", args=[email.id])
        return format_html(
            '<div class="frames" role="group" aria-label="Width">'
            '<input type="radio" name="width" id="width-desk" checked><label for="width-desk">Desktop</label>'
            '<input type="radio" name="width" id="width-phone"><label for="width-phone">Phone</label>'
            '<iframe class="preview" sandbox src="{}" title="The e-mail as HTML"></iframe></div>',
            url,
        )

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

    @admin.display(description="as text")
    def text(self, email: EmailNotification) -> SafeString:
        return format_html('<pre class="mail-text">{}</pre>', email.body_text)

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


def _acts(request: HttpRequest, email: EmailNotification) -> dict[str, Any]:
    """Return the buttons (the list's actions with labels), whether to offer a copy, and the hold."""
    now = read_database_time()
    resend, give_up = why_not_resent(email=email, now=now), why_not_given_up(email=email, now=now)
    actions = [
        ("resend", "Send now" if email.status == Status.FAILED else "Resend", RESEND, resend),
        ("render_again", "Render again", RESEND, give_up),  # gives up the e-mail, and sends another
        ("give_up", "Give up", GIVE_UP, give_up),
    ]
    may_copy = request.user.has_perm("notifications.copy_emailnotification")
    return {
        "buttons": [
            (name, label)
            for name, label, action, refusal in actions
            if refusal is None and request.user.has_perm(action.permission)
        ],
        "can_copy": may_copy and not why_not_copied(email=email),
        "held": give_up.text if give_up is not None and give_up.until is not None else "",
    }
