"""Resend's `POST /emails` through anymail, with an idempotency key, and the verdicts of its answers.

Written from Resend's API reference ("Errors", "Rate limit"), "Idempotency Keys" and "Managing Tags". Its
errors are JSON with a `name`, which decides if the status alone would mislead.

accepted       200 with an `id`; a key that was used with the same payload gets the first mail's id again
permanent      400 validation_error, invalid_idempotency_key; 422 missing_required_field, invalid_parameter,
               invalid_attachment; 451 security_error; 409 invalid_idempotent_request (this mail's key was
               used with another payload, before a change of sender or release; repeating cannot help, but a
               webhook may still prove that the earlier attempt was accepted)
transient      500 application_error, internal_server_error, other 5xx except a gateway's, 408
unreachable    refused connection, connect timeout, no such host, TLS handshake
throttled      429 rate_limit_exceeded (Retry-After), daily_quota_exceeded, monthly_quota_exceeded
misconfigured  401 missing_api_key, restricted_api_key; 403 invalid_api_key; 422 invalid_access,
               invalid_region; 404 not_found, 405 method_not_allowed
sender refused 403 validation_error (domain not verified, test domain); 422 invalid_from_address
ambiguous      no answer after the request was sent, a gateway's (502, 504, 520, 524), or an unreadable 2xx;
               409 concurrent_idempotent_requests (an earlier attempt is in progress and may be accepted).
               Repeating is safe, because within 24 hours the same key sends no second mail
"""

from __future__ import annotations

import re
from typing import Any

import requests
from anymail.backends.resend import EmailBackend
from django.core.mail import EmailMultiAlternatives

from notifications.providers.base import OutgoingEmail, metadata_of
from notifications.providers.http import HttpProvider, LeanBackend
from notifications.states.outcomes import Verdict


class ResendProvider(HttpProvider):
    name = "resend"
    backend = "notifications.providers.resend.backend.Backend"
    is_idempotent = True
    verdicts = {
        "invalid_idempotent_request": Verdict.PERMANENT,
        "concurrent_idempotent_requests": Verdict.AMBIGUOUS,
        "invalid_from_address": Verdict.SENDER_REFUSED,
        "invalid_access": Verdict.MISCONFIGURED,
        "invalid_region": Verdict.MISCONFIGURED,
    }

    def read_error(self, body: Any) -> tuple[str, str]:
        return str(body["name"]), f"{body['name']}: {body['message']}"

    def read_id(self, answer: requests.Response) -> Any:
        return answer.json()["id"]

    def verdict(self, *, status: int, name: str, text: str) -> Verdict:
        """Blame the sender for a 403 that is not about the key."""
        if status == 403 and name == "validation_error":
            return Verdict.SENDER_REFUSED
        return super().verdict(status=status, name=name, text=text)

    def prepare(self, message: EmailMultiAlternatives, email: OutgoingEmail) -> None:
        """Send the ids as tags, too: by Resend's documents webhooks return tags, but not X-Metadata."""
        tags = [
            {"name": name, "value": re.sub(r"[^A-Za-z0-9_-]", "_", value)}
            for name, value in metadata_of(email).items()
        ]
        message.esp_extra = {"tags": tags}  # type: ignore[attr-defined]  # anymail's attribute


class Backend(LeanBackend, EmailBackend):
    """Anymail's backend over `Session`, with the notification's id as the HTTP request's idempotency key."""

    def post_to_esp(self, payload: Any, message: EmailMultiAlternatives) -> requests.Response:
        """Put the key into the request's headers. Anymail's `esp_extra` would put it into the mail's."""
        payload.headers["Idempotency-Key"] = message.metadata["notification_id"]  # type: ignore[attr-defined]
        response: requests.Response = super().post_to_esp(payload, message)  # type: ignore[no-untyped-call]
        return response
