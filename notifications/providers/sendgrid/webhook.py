"""`POST /webhooks/sendgrid`."""

from __future__ import annotations

import json
from typing import Any, cast

import structlog
from anymail.signals import AnymailTrackingEvent
from anymail.webhooks.sendgrid import SendGridTrackingWebhookView
from django.conf import settings
from django.http import HttpRequest

from notifications.providers.webhook import UNREADABLE, View, Webhook, check_time

log = structlog.get_logger(__name__)


class SendGrid(Webhook, SendGridTrackingWebhookView):
    """SendGrid's Event Webhook: a JSON list, ECDSA-signed with its time, which anymail does not look at."""

    provider = "sendgrid"

    def check_fresh(self, request: HttpRequest) -> None:
        """The signed time is of this post: SendGrid signs anew when it tries again."""
        if self.webhook_verification_key:
            check_time(float(request.headers["X-Twilio-Email-Event-Webhook-Timestamp"]))

    def parse_events(self, request: HttpRequest) -> list[AnymailTrackingEvent]:
        """One bad event must not keep the others away."""
        batch = json.loads(request.body)
        if not isinstance(batch, list):
            raise TypeError("not a list")
        return [event for one in batch if (event := self._read(one)) is not None]

    def _read(self, one: Any) -> AnymailTrackingEvent | None:
        try:
            return cast("AnymailTrackingEvent", self.esp_to_anymail_event(one))
        except UNREADABLE as error:
            log.info("webhook event cannot be read", provider=self.provider, error=type(error).__name__)
            return None


def view() -> View:
    """This function will make the view with the key that the settings have now."""
    key = settings.SENDGRID_WEBHOOK_VERIFICATION_KEY or None
    return cast(View, SendGrid.as_view(tracking_webhook_verification_key=key))
