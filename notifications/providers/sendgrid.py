"""SendGrid's v3 Mail Send API through anymail, and what its answers mean.

Status codes as in SendGrid's documentation ("v3 API Responses", "Rate limits"): 202 accepted; 400 and 413
are the message's fault; 401 and 403 are the account's; 429 carries X-RateLimit-Reset; 5xx are theirs.
SendGrid has no idempotency key, so a lost answer is ambiguous.
"""

from __future__ import annotations

import requests
from django.core.mail import EmailMultiAlternatives

from notifications.providers.base import Provider
from notifications.providers.http import classify
from outbox.outcomes import Outcome, Verdict


class SendGrid(Provider):
    """`EMAIL_PROVIDERS=sendgrid`."""

    name = "sendgrid"
    backend = "anymail.backends.sendgrid.EmailBackend"

    def accepted(self, message: EmailMultiAlternatives) -> Outcome:
        """The id is SendGrid's own X-Message-Id: anymail's is made anew at each try."""
        answer: requests.Response = message.anymail_status.esp_response  # type: ignore[attr-defined]
        return Outcome(Verdict.ACCEPTED, self.name, answer.headers.get("X-Message-Id", ""))

    def refused(self, error: Exception) -> Outcome:
        """See `http.classify`."""
        return classify(provider=self.name, error=error)

    def not_connected(self, error: Exception) -> Outcome:
        """Opening connects to nothing yet: only our own configuration can fail."""
        return Outcome(Verdict.MISCONFIGURED, self.name, code=type(error).__name__, text=str(error))
