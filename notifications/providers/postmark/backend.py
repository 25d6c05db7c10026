"""Postmark's `POST /email` through anymail, and the verdicts of its answers.

Written from Postmark's API reference ("API overview: HTTP response codes, API error codes"; "Email API: Send
a single email") and its support pages "What does Error Code 300 mean?", "Troubleshooting 422 Unprocessable
Entity errors" and "Custom metadata FAQ". Its errors are JSON with an `ErrorCode`, which decides.

accepted       200 with a `MessageID`
permanent      422 with 300 (invalid e-mail request), 406 (inactive recipient: it bounced or complained
               before), 402, 403, 409, 411; 413; other 4xx about the message
transient      500, 503, other 5xx except a gateway's, 408, 409; 100 (maintenance)
unreachable    refused connection, connect timeout, no such host, TLS handshake
throttled      429
misconfigured  401 with 10 (token); 422 with 405 (no credits left), 412 (account pending), 413 (account may
               not send); 404, 415, …
sender refused 422 with 300 about 'From', 400 and 401 (sender signature not found or not confirmed), 1235 (no
               such message stream)
ambiguous      no answer after the request was sent, a gateway's (502, 504, 520, 524), or an unreadable 2xx,
               because Postmark has no idempotency keys
"""

from __future__ import annotations

from typing import Any

import requests
from anymail.backends.base_requests import AnymailRequestsBackend
from anymail.backends.postmark import EmailBackend
from django.core.mail import EmailMultiAlternatives

from notifications.providers.base import OutgoingEmail
from notifications.providers.http import HttpProvider, LeanBackend
from notifications.states.outcomes import Verdict


class PostmarkProvider(HttpProvider):
    name = "postmark"
    backend = "notifications.providers.postmark.backend.Backend"
    bounced_before = "406"
    verdicts = {
        "10": Verdict.MISCONFIGURED,
        "100": Verdict.TRANSIENT,
        "400": Verdict.SENDER_REFUSED,
        "401": Verdict.SENDER_REFUSED,
        "405": Verdict.MISCONFIGURED,
        "412": Verdict.MISCONFIGURED,
        "413": Verdict.MISCONFIGURED,
        "429": Verdict.THROTTLED,
        "1235": Verdict.SENDER_REFUSED,
    }

    def read_error(self, body: Any) -> tuple[str, str]:
        return str(body["ErrorCode"]), f"{body['ErrorCode']}: {body['Message']}"

    def read_id(self, answer: requests.Response) -> Any:
        """Return Postmark's MessageID, which its webhooks have, too. An answer may leave the code 0 out."""
        body = answer.json()
        return "" if body.get("ErrorCode") else body["MessageID"]

    def verdict(self, *, status: int, name: str, text: str) -> Verdict:
        """Blame the sender for an invalid request about it."""
        if status == 422 and name == "300" and "'From'" in text:
            return Verdict.SENDER_REFUSED
        return super().verdict(status=status, name=name, text=text)

    def prepare(self, message: EmailMultiAlternatives, email: OutgoingEmail) -> None:
        """Ask Postmark to keep our Message-ID."""
        message.extra_headers["X-PM-KeepID"] = "true"


class Backend(LeanBackend, EmailBackend):
    """Anymail's backend over `Session`."""

    def raise_for_status(
        self, response: requests.Response, payload: Any, message: EmailMultiAlternatives
    ) -> None:
        """Raise for 422, too, because anymail would return some refused recipients without an error."""
        AnymailRequestsBackend.raise_for_status(self, response, payload, message)  # type: ignore[no-untyped-call]
