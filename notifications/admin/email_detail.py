"""The page of one e-mail: its delivery, the errors of its attempts, its content."""

from __future__ import annotations

from urllib.parse import quote

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from notifications.models import EmailNotification
from notifications.suppressions import suppression_of


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
                ]
            },
        ),
        ("Delivery", {"fields": ["tries", "next_try", "last_error", "error_table"]}),
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
        ("Content", {"fields": ["subject", "preview", "text"]}),
        (
            "Identity",
            {"fields": ["id", "correlation_id", "idempotency_key", "created_at", "updated_at", "claimed_at"]},
        ),
    ]

    @admin.display(description="address")
    def suppressed(self, mail: EmailNotification) -> SafeString | str:
        if (found := suppression_of(mail.recipient_email)) is None:
            return "may be written to"
        url = f"{reverse('admin:notifications_suppression_changelist')}?q={quote(mail.recipient_email)}"
        return format_html('suppressed: {} (<a href="{}">lift</a>)', found.get_reason_display(), url)

    @admin.display(description="attempts that failed")
    def error_table(self, mail: EmailNotification) -> SafeString | str:
        if not mail.errors:
            return "none"
        lines = format_html_join(
            "",
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            (
                (
                    str(one.get("at", ""))[:19].replace("T", " "),
                    one.get("provider"),
                    one.get("outcome"),
                    one.get("text"),
                )
                for one in mail.errors
            ),
        )
        head = "<tr><th>Time (UTC)</th><th>Provider</th><th>Outcome</th><th>What it said</th></tr>"
        return format_html('<table class="errors">' + head + "{}</table>", lines)

    @admin.display(description="as HTML")
    def preview(self, mail: EmailNotification) -> SafeString:
        # The frame can neither load nor run anything: see preview.py.
        url = reverse("admin:notifications_emailnotification_preview", args=[mail.id])
        return format_html(
            '<iframe class="preview" sandbox src="{}" title="The e-mail as HTML"></iframe>', url
        )

    @admin.display(description="as text")
    def text(self, mail: EmailNotification) -> SafeString:
        return format_html('<pre class="mail-text">{}</pre>', mail.body_text)
