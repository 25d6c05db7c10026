"""Mailgun's `POST /v3/{domain}/messages` through anymail, and the verdicts of its answers.

Written from Mailgun's quickstart guide "API Response Codes", its user manual "Sending Messages: HTTP" and its
API reference "Messages: Send an email". Its errors have a `message` but no name, so the status decides.

accepted       200 with an `id`
permanent      400, 413, other 4xx about the message
transient      500, other 5xx except a gateway's, 408, 409
unreachable    refused connection, connect timeout, no such host, TLS handshake
throttled      429
misconfigured  401, 403 (key), 404, 402; 200 "Mailgun Magnificent API" (a wrong address: nothing was sent)
sender refused 400 about the from parameter; 403 "Domain … is not allowed to send" (unverified);
               404 "Domain not found" (or the other region's)
ambiguous      no answer after the request was sent, a gateway's (502, 504, 520, 524), or an unreadable 2xx,
               because Mailgun has no idempotency keys
"""

from __future__ import annotations

import base64
import re
from typing import Any
from urllib.parse import urlencode

import requests
from anymail.backends.mailgun import EmailBackend, MailgunPayload
from django.core.mail import EmailMultiAlternatives

from notifications.providers.http import HttpProvider, LeanBackend
from notifications.states.outcomes import Verdict

_ABOUT_SENDER = re.compile(r"'?from'? parameter|Domain .*(is not allowed to send|not found)|Domain not found")


class MailgunProvider(HttpProvider):
    name = "mailgun"
    backend = "notifications.providers.mailgun.backend.Backend"

    def read_error(self, body: Any) -> tuple[str, str]:
        return "", str(body["message"])

    def read_id(self, answer: requests.Response) -> Any:
        return answer.json()["id"]

    def verdict(self, *, status: int, name: str, text: str) -> Verdict:
        """Blame the sender or its domain, or the API's address."""
        if status in (400, 403, 404) and _ABOUT_SENDER.match(text):
            return Verdict.SENDER_REFUSED
        if "Mailgun Magnificent API" in text:
            return Verdict.MISCONFIGURED
        return super().verdict(status=status, name=name, text=text)


class Payload(MailgunPayload):
    """Anymail's payload as one urlencoded body. `Session` takes neither forms nor `auth`."""

    def get_request_params(self, api_url: str) -> dict[str, Any]:
        params: dict[str, Any] = super().get_request_params(api_url)  # type: ignore[no-untyped-call]
        login = base64.b64encode(":".join(params.pop("auth")).encode()).decode()
        params["headers"] = params["headers"] | {
            "Authorization": f"Basic {login}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        params["data"] = urlencode(params["data"], doseq=True)
        return params


class Backend(LeanBackend, EmailBackend):
    """Anymail's backend over `Session`."""

    def build_message_payload(self, message: EmailMultiAlternatives, defaults: Any) -> Payload:
        return Payload(message, defaults, self)  # type: ignore[no-untyped-call]
