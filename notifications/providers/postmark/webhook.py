"""Postmark's webhooks: one event each, protected by the password in the endpoint's address.

From "Webhooks overview: Protecting your webhook", "Bounce webhook", "Delivery webhook", "Spam complaint
webhook" and "Bounce API: Bounce types". Postmark signs neither the body nor a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from anymail.signals import AnymailTrackingEvent, EventType
from anymail.webhooks.postmark import PostmarkTrackingWebhookView
from django.http import HttpRequest

from notifications.models import Suppression
from notifications.providers.webhook import Webhook, raw, read_json

#: The types of bounces that refuse the mailbox. Others, such as Blocked, DMARCPolicy or ManuallyDeactivated,
#: are of the message, the sender or a person.
_REFUSALS = frozenset({"HardBounce", "BadEmailAddress"})


class PostmarkWebhook(Webhook):
    has_password = True

    def verify(self, request: HttpRequest) -> None:
        PostmarkTrackingWebhookView(webhook_secret=self.key).run_validators(request)

    def parse(self, request: HttpRequest) -> Iterable[AnymailTrackingEvent]:
        reader = PostmarkTrackingWebhookView()
        event = cast("AnymailTrackingEvent", reader.esp_to_anymail_event(read_json(request.body)))
        if raw(event).get("Type") == "SpamNotification":
            # The recipient's server classified it as spam, which anymail calls a complaint.
            event.event_type = EventType.BOUNCED
        return [event]

    def is_permanent(self, event: AnymailTrackingEvent) -> bool:
        """Read the bounce's `Type`, and whether Postmark has deactivated the address."""
        data = raw(event)
        return data.get("Type") == "HardBounce" or self.why_suppressed(event) is not None

    def why_suppressed(self, event: AnymailTrackingEvent) -> Suppression.Reason | None:
        """Suppress an address that Postmark has deactivated after a hard bounce, not for another type."""
        data = raw(event)
        if event.event_type == EventType.COMPLAINED:
            return Suppression.Reason.COMPLAINT
        is_refused = data.get("Type", "HardBounce") in _REFUSALS
        if (data.get("Inactive") is True and is_refused) or data.get("SuppressionReason") == "HardBounce":
            return Suppression.Reason.HARD_BOUNCE
        return None
