"""SES' events through SNS, verified by a password in the endpoint's address and by SNS' signature.

SNS also signs the messages of strangers' topics. The signature alone does not suffice.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

import structlog
from anymail.signals import AnymailTrackingEvent
from anymail.webhooks.amazon_ses import AmazonSESTrackingWebhookView
from django.http import HttpRequest

from notifications.models import Suppression
from notifications.providers.ses import sns
from notifications.providers.webhook import Webhook, check_time, has_other_cause, raw, read_json

log = structlog.get_logger(__name__)

#: The message that SES publishes once to a topic when a configuration set is connected to it.
_GREETING = "Successfully validated SNS topic for Amazon SES event publishing."
#: SNS retries a notification with its first time, for up to an hour by its default policy.
_RETRIED_FOR_SECONDS = 3600.0


class SesWebhook(Webhook):
    has_password = True

    def verify(self, request: HttpRequest) -> None:
        """Raise anymail's error unless password and SNS' headers fit, `Unsigned` unless SNS signed it now."""
        AmazonSESTrackingWebhookView(webhook_secret=self.key).run_validators(request)
        message = _message(request)
        sns.verify(message)
        sent = dt.datetime.fromisoformat(message["Timestamp"])
        check_time(sent.timestamp(), retried_for_seconds=_RETRIED_FOR_SECONDS)

    def parse(self, request: HttpRequest) -> Iterable[AnymailTrackingEvent]:
        """Return a notification's events, or confirm a subscription if `verify` has run."""
        message = _message(request)
        match message.get("Type"):
            case "Notification" if message.get("Message") == _GREETING:
                return []
            case "Notification":
                event = read_json(message["Message"])
                reader = AmazonSESTrackingWebhookView()
                return cast("list[AnymailTrackingEvent]", reader.esp_to_anymail_events(event, message))
            case "SubscriptionConfirmation" if self.key:
                sns.confirm(message)
                log.info("SNS subscription confirmed", topic=message.get("TopicArn"))
        return []

    def metadata(self, event: AnymailTrackingEvent) -> Mapping[str, Any]:
        """Add the tags of other senders. SES itself adds some whose names begin with "ses:"."""
        tags = (raw(event).get("mail") or {}).get("tags") or {}
        others = {name: value for name, value in tags.items() if not name.startswith("ses:")}
        return {**others, **super().metadata(event)}

    def header(self, event: AnymailTrackingEvent) -> str:
        email = raw(event).get("mail") or {}
        return str((email.get("commonHeaders") or {}).get("messageId") or "")

    def is_permanent(self, event: AnymailTrackingEvent) -> bool:
        """Read `bounceType`: Permanent, Transient or Undetermined."""
        bounce = raw(event).get("bounce") or {}
        return bool(bounce.get("bounceType", "Permanent") == "Permanent")

    def why_suppressed(self, event: AnymailTrackingEvent) -> Suppression.Reason | None:
        """Suppress no address for a refusal of the message, nor one that SES itself unsubscribed."""
        bounce = raw(event).get("bounce") or {}
        recipients = bounce.get("bouncedRecipients") or []
        if bounce.get("bounceSubType") == "UnsubscribedRecipient" or has_other_cause(
            *(recipient.get("diagnosticCode", "") for recipient in recipients if isinstance(recipient, dict))
        ):
            return None
        return super().why_suppressed(event)


def _message(request: HttpRequest) -> dict[str, Any]:
    message = json.loads(request.body)
    if not isinstance(message, dict):
        raise TypeError("not an object")
    return message
