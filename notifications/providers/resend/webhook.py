"""Resend's webhooks: one event each, signed by Svix. Its library also checks the time (five minutes)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from anymail.signals import AnymailTrackingEvent
from anymail.webhooks.resend import ResendTrackingWebhookView
from django.http import HttpRequest

from notifications.models import Suppression
from notifications.providers.webhook import Webhook, has_other_cause, is_signature, is_timely, raw, read_json


class ResendWebhook(Webhook):
    def has_signature(self, headers: Mapping[str, str]) -> bool:
        """Check the form of Svix' three headers, whose names also begin with `webhook-`."""
        for prefix in ("svix-", "webhook-"):
            names = (prefix + name for name in ("id", "timestamp", "signature"))
            id, sent_at, signatures = map(headers.get, names)
            if id and sent_at and signatures:
                versions = [signature.partition(",") for signature in signatures.split(" ")]
                return is_timely(sent_at) and any(
                    version == "v1" and is_signature(text, shortest=32, longest=32)
                    for version, _, text in versions
                )
        return False

    def verify(self, request: HttpRequest) -> None:
        """Raise anymail's error unless Svix signed this body within the last five minutes."""
        ResendTrackingWebhookView(signing_secret=self.key).run_validators(request)

    def parse(self, request: HttpRequest) -> Iterable[AnymailTrackingEvent]:
        reader = ResendTrackingWebhookView(signing_secret=None)
        event = reader.esp_to_anymail_event(read_json(request.body), request)
        return [cast("AnymailTrackingEvent", event)]

    def metadata(self, event: AnymailTrackingEvent) -> Mapping[str, Any]:
        """Return the e-mail's X-Metadata, else its tags, which are an object or a list."""
        if own := super().metadata(event):
            return own
        tags = _data(event).get("tags")
        if isinstance(tags, list):
            return {str(tag.get("name")): tag.get("value") for tag in tags if isinstance(tag, dict)}
        return tags if isinstance(tags, dict) else {}

    def header(self, event: AnymailTrackingEvent) -> str:
        headers = _data(event).get("headers") or []
        return next(
            (str(header["value"]) for header in headers if header["name"].lower() == "message-id"), ""
        )

    def is_permanent(self, event: AnymailTrackingEvent) -> bool:
        """Read `bounce.type`: Permanent, Transient or Undetermined."""
        bounce = _data(event).get("bounce") or {}
        return bool(bounce.get("type", "Permanent") == "Permanent")

    def why_suppressed(self, event: AnymailTrackingEvent) -> Suppression.Reason | None:
        """Suppress no address for a refusal of the message."""
        bounce = _data(event).get("bounce") or {}
        return None if has_other_cause(bounce.get("message", "")) else super().why_suppressed(event)


def _data(event: AnymailTrackingEvent) -> dict[str, Any]:
    data = raw(event).get("data")
    return data if isinstance(data, dict) else {}
