"""Mailgun's webhooks: one event each, with an HMAC of a time and a token.

From the user manual's "Securing Webhooks", "Automatic Retries" and "Event structure". The signature does not
cover the event, so each is accepted with one body only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, cast

from anymail.signals import AnymailTrackingEvent, EventType
from anymail.webhooks.mailgun import MailgunTrackingWebhookView
from django.http import HttpRequest

from notifications.models import Suppression
from notifications.providers.webhook import (
    Webhook,
    blames_address,
    check_time,
    has_other_cause,
    raw,
    read_json,
)

#: Mailgun retries an event for eight hours. It does not document whether with the first time: allow that.
RETRIED_FOR_SECONDS = 8 * 3600.0
_REASONS = {
    "bounce": Suppression.Reason.HARD_BOUNCE,
    "suppress-bounce": Suppression.Reason.HARD_BOUNCE,
    "suppress-complaint": Suppression.Reason.COMPLAINT,
}


class MailgunWebhook(Webhook):
    def verify(self, request: HttpRequest) -> None:
        """Raise anymail's error unless the signature is right, `Unsigned` unless its time is."""
        if request.content_type != "application/json":
            raise TypeError("not JSON")  # anymail would read the form of before 2018
        MailgunTrackingWebhookView(webhook_signing_key=self.key).run_validators(request)
        signed = float(json.loads(request.body)["signature"]["timestamp"])
        check_time(signed, retried_for_seconds=RETRIED_FOR_SECONDS)

    def signature_of(self, request: HttpRequest) -> str:
        """Return the signature, not its token: characters moved from one to the other sign the same."""
        return str(json.loads(request.body)["signature"]["signature"])

    def parse(self, request: HttpRequest) -> Iterable[AnymailTrackingEvent]:
        reader = MailgunTrackingWebhookView(webhook_signing_key=self.key)
        return [cast("AnymailTrackingEvent", reader.esp_to_anymail_event(read_json(request.body)))]

    def header(self, event: AnymailTrackingEvent) -> str:
        """Return the id of the message. Mailgun keeps ours."""
        return self.message_id(event)

    def is_permanent(self, event: AnymailTrackingEvent) -> bool:
        """Read `severity`."""
        return _data(event).get("severity") == "permanent"

    def why_suppressed(self, event: AnymailTrackingEvent) -> Suppression.Reason | None:
        """Read `reason`. A failure may also be Mailgun's or that of a server that never answered.

        A bounce may also be soft: Mailgun gave up, but the address may take the next e-mail. One that Mailgun
        does not call hard must refuse the mailbox in words.
        """
        if event.event_type == EventType.COMPLAINED:
            return Suppression.Reason.COMPLAINT
        data = _data(event)
        if data.get("reason") == "bounce":
            answer = data.get("delivery-status") or {}
            kind = answer.get("bounce-type")
            said = [answer[name] for name in ("enhanced-code", "code", "message") if answer.get(name)]
            is_explained = bool(answer.get("enhanced-code") or answer.get("message"))
            is_certain = kind == "hard" or not is_explained
            is_refusal = not has_other_cause(*said) if is_certain else blames_address(*said)
            if kind == "soft" or not is_refusal:
                return None
        return _REASONS.get(str(data.get("reason")))


def _data(event: AnymailTrackingEvent) -> dict[str, Any]:
    data = raw(event).get("event-data")
    return data if isinstance(data, dict) else {}
