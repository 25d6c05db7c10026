"""Resend's API through anymail, with its idempotency key, and what its answers mean.

Statuses and names as in Resend's documentation ("Errors", "Idempotency Keys"): 200 accepted; 400 and 422
are the message's fault; 401, 403, 404 and 405 are the account's; 429 is the rate (Retry-After) or a quota;
5xx are theirs. A key is kept for 24 hours: the same request again gets the first answer, sends nothing. 409
`concurrent_idempotent_requests` means that the first is still being worked on; `invalid_idempotent_request`
that the key was used for another content.
"""

from __future__ import annotations

from typing import Any

import requests
from anymail.backends.resend import EmailBackend
from django.core.mail import EmailMultiAlternatives

from notifications.providers.base import Provider
from notifications.providers.http import classify
from outbox.outcomes import Outcome, Verdict

#: A quota is full for hours; the rate is for a second.
QUOTA_SECONDS = 3600.0


class KeyedBackend(EmailBackend):
    """Anymail's backend with the `Idempotency-Key` header, which its `esp_extra` cannot set."""

    def post_to_esp(self, payload: Any, message: Any) -> requests.Response:
        """The key is the notification: the same at every try."""
        payload.headers["Idempotency-Key"] = f"notification/{message.metadata['notification_id']}"
        answer: requests.Response = super().post_to_esp(payload, message)  # type: ignore[no-untyped-call]
        return answer


class Resend(Provider):
    """`EMAIL_PROVIDERS=resend`."""

    name = "resend"
    backend = "notifications.providers.resend.KeyedBackend"
    idempotent = True

    def accepted(self, message: EmailMultiAlternatives) -> Outcome:
        """The id is Resend's."""
        answer: requests.Response = message.anymail_status.esp_response  # type: ignore[attr-defined]
        return Outcome(Verdict.ACCEPTED, self.name, str(answer.json().get("id", "")))

    def refused(self, error: Exception) -> Outcome:
        """See `http.classify`; a key that was used for another content will be refused for ever."""
        outcome = classify(provider=self.name, error=error)
        if outcome.code == "409" and "invalid_idempotent_request" in outcome.text:
            return Outcome(Verdict.PERMANENT, self.name, code=outcome.code, text=outcome.text)
        if outcome.verdict is Verdict.THROTTLED and "quota" in outcome.text:
            wait = max(outcome.wait or 0.0, QUOTA_SECONDS)
            return Outcome(Verdict.THROTTLED, self.name, code=outcome.code, text=outcome.text, wait=wait)
        return outcome

    def not_connected(self, error: Exception) -> Outcome:
        """Opening connects to nothing yet: only our own configuration can fail."""
        return Outcome(Verdict.MISCONFIGURED, self.name, code=type(error).__name__, text=str(error))
