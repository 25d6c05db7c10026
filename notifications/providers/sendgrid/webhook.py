"""SendGrid's Event Webhook: a JSON list of events, ECDSA-signed with the time of the post.

From "Event Webhook Reference" and "Event Webhook Security Features". SendGrid signs each retry again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import structlog
from anymail.signals import AnymailTrackingEvent, EventType
from anymail.webhooks.sendgrid import SendGridTrackingWebhookView
from django.http import HttpRequest

from notifications.models import Suppression
from notifications.providers.webhook import (
    MOST_EVENTS,
    UNREADABLE,
    Webhook,
    blames_address,
    check_time,
    is_signature,
    is_timely,
    raw,
    read_json,
)

log = structlog.get_logger(__name__)

#: Members of SendGrid's events that anymail would take for metadata, besides `sg_…`.
_OWN_MEMBERS = frozenset({"bounce_classification"})

#: The classifications of bounces whose cause is not the address.
_OTHER_CAUSES = frozenset({"Content", "Frequency or Volume Too High", "Reputation", "Technical Failure"})


class SendGridWebhook(Webhook):
    def has_signature(self, headers: Mapping[str, str]) -> bool:
        """Check the form of SendGrid's two headers: an ECDSA signature in DER, and a time about now."""
        signature = headers.get("X-Twilio-Email-Event-Webhook-Signature", "")
        sent_at = headers.get("X-Twilio-Email-Event-Webhook-Timestamp", "")
        return is_signature(signature, shortest=8, longest=72) and is_timely(sent_at)

    def verify(self, request: HttpRequest) -> None:
        """Raise anymail's error unless the key signed this body, `Unsigned` unless its time is about now."""
        SendGridTrackingWebhookView(tracking_webhook_verification_key=self.key).run_validators(request)
        check_time(float(request.headers["X-Twilio-Email-Event-Webhook-Timestamp"]))

    def parse(self, request: HttpRequest) -> Iterator[AnymailTrackingEvent]:
        """Yield the events that can be read. One bad event must not lose the others."""
        batch = read_json(request.body)
        if not isinstance(batch, list):
            raise TypeError("not a list")
        if len(batch) > MOST_EVENTS:
            raise ValueError("too many events")
        reader = SendGridTrackingWebhookView()
        for event in batch:
            try:
                yield cast("AnymailTrackingEvent", reader.esp_to_anymail_event(event))
            except UNREADABLE as error:
                log.info("webhook event cannot be read", provider="sendgrid", error=type(error).__name__)

    def metadata(self, event: AnymailTrackingEvent) -> Mapping[str, Any]:
        """Leave out SendGrid's own members that anymail does not know."""
        return {
            name: value
            for name, value in super().metadata(event).items()
            if name not in _OWN_MEMBERS and not name.startswith("sg_")
        }

    def header(self, event: AnymailTrackingEvent) -> str:
        return str(raw(event).get("smtp-id") or "")

    def message_id(self, event: AnymailTrackingEvent) -> str:
        """Return the X-Message-Id of SendGrid's answer, which is the first part of `sg_message_id`."""
        return str(raw(event).get("sg_message_id") or "").partition(".")[0]

    def is_permanent(self, event: AnymailTrackingEvent) -> bool:
        """Tell a bounce from a block, which SendGrid reports as a bounce, too."""
        return raw(event).get("type") != "blocked"

    def why_suppressed(self, event: AnymailTrackingEvent) -> Suppression.Reason | None:
        """Read why a bounce bounced. SendGrid also calls a full mailbox or a bad reputation a bounce.

        Read the reason of a `dropped` event for spam reports, which anymail does not recognise.
        """
        if event.event_type == EventType.BOUNCED:
            bounce, classification = raw(event), raw(event).get("bounce_classification")
            said = [bounce[name] for name in ("status", "reason") if bounce.get(name)]
            is_refusal = classification == "Invalid Address" or not said or blames_address(*said)
            if classification in _OTHER_CAUSES or not is_refusal:
                return None
        if (
            event.event_type == EventType.REJECTED
            and "spam reporting" in str(raw(event).get("reason")).lower()
        ):
            return Suppression.Reason.COMPLAINT
        return super().why_suppressed(event)
