"""SendGrid's v3 Mail Send API through anymail, and the verdicts of its answers.

Written from SendGrid's API reference ("Responses", "Errors", "Rate Limits") and its support page "4XX API
Errors and Troubleshooting Suggestions". SendGrid does not name its errors, so the status decides.

accepted       202, with X-Message-Id
permanent      400, 413, 451 (data residency), other 4xx about the message; a message that cannot be built
transient      5xx except a gateway's, 408, 409
unreachable    refused connection, connect timeout, no such host, TLS handshake
throttled      429; X-RateLimit-Reset (epoch seconds) or Retry-After says until when
misconfigured  401 key, 402, 403 (blocked after many bad requests), 404, 405, 406, …
sender refused 403 about a "verified Sender Identity"
ambiguous      no answer after the request was sent, a gateway's (502, 504, 520, 524), or another 2xx without
               an X-Message-Id, because SendGrid has no idempotency keys
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import requests
from anymail.backends.sendgrid import EmailBackend
from django.core.mail import EmailMultiAlternatives

from notifications.providers.http import HttpProvider, LeanBackend
from notifications.states.outcomes import Outcome, Verdict


class SendGridProvider(HttpProvider):
    name = "sendgrid"
    backend = "notifications.providers.sendgrid.backend.Backend"

    def read_error(self, body: Any) -> tuple[str, str]:
        return "", "; ".join(str(error["message"]) for error in body["errors"])

    def verdict(self, *, status: int, name: str, text: str) -> Verdict:
        """Blame the sender for a 403 about its verification."""
        if status == 403 and "verified Sender Identity" in text:
            return Verdict.SENDER_REFUSED
        return super().verdict(status=status, name=name, text=text)

    def accepted(self, message: EmailMultiAlternatives) -> Outcome:
        """Return the outcome of a 2xx answer. A 202 is SendGrid's own, also without an id."""
        answer: requests.Response = message.anymail_status.esp_response  # type: ignore[attr-defined]
        if answer.status_code == HTTPStatus.ACCEPTED:
            return Outcome(Verdict.ACCEPTED, self.name, answer.headers.get("X-Message-Id", ""))
        return super().accepted(message)

    def read_id(self, answer: requests.Response) -> Any:
        """Return SendGrid's X-Message-Id, which its webhooks have, too."""
        return answer.headers["X-Message-Id"]


class Backend(LeanBackend, EmailBackend):
    """Anymail's backend over `Session`."""
