"""Mailgun's Messages API and webhooks, as the sandbox plays them.

From its API reference "Messages: Send an email" and its user manual's "Event structure" and "Securing
Webhooks".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs

from notifications.providers.dialect import (
    Dialect,
    Event,
    Header,
    Post,
    ProviderAnswer,
    RefusalReason,
    address,
    addresses,
    parts,
)

_FAILED: dict[str, dict[str, str]] = {
    "bounce": {"event": "failed", "severity": "permanent", "reason": "bounce"},
    "dropped": {"event": "failed", "severity": "permanent", "reason": "suppress-bounce"},
    "blocked": {"event": "failed", "severity": "temporary", "reason": "generic"},
    "deferred": {"event": "failed", "severity": "temporary", "reason": "generic"},
}
_EVENTS = {"processed": "accepted", "delivered": "delivered", "spamreport": "complained"}


class MailgunDialect(Dialect):
    """`POST /v3/{domain}/messages`, urlencoded."""

    name = "mailgun"
    path = re.compile(r"/v3/[^/]+/messages")
    content_type = "application/x-www-form-urlencoded"

    def payload(self, body: bytes) -> dict[str, Any] | None:
        try:
            form = parse_qs(body.decode(), strict_parsing=True)
        except ValueError:
            return None
        first = {name: values[0] for name, values in form.items()}
        return {
            "from": address(first.get("from")),
            "personalizations": [{"to": [address(recipient) for recipient in form.get("to", [])]}],
            "reply_to_list": addresses(first.pop("h:Reply-To", "")),
            "subject": first.get("subject"),
            "content": parts(text=first.get("text"), html=first.get("html")),
            "headers": {
                # Anymail capitalises each word of a header's name.
                name.removeprefix("h:").replace("Message-Id", "Message-ID"): value
                for name, value in first.items()
                if name.startswith("h:")
            },
            "custom_args": {
                name.removeprefix("v:"): value for name, value in first.items() if name.startswith("v:")
            },
        }

    def key(self, header: Header) -> str | None:
        """Return the password of the user `api`."""
        try:
            login = base64.b64decode((header("Authorization") or "").removeprefix("Basic ")).decode()
        except ValueError:
            return None
        return login.removeprefix("api:") if login.startswith("api:") else None

    def accepted(self, message_id: str) -> ProviderAnswer:
        return ProviderAnswer(
            200, json.dumps({"id": _id(message_id), "message": "Queued. Thank you."}).encode()
        )

    def refusal(self, status: int, reasons: Sequence[RefusalReason]) -> ProviderAnswer:
        message = "; ".join(reason.message for reason in reasons)
        return ProviderAnswer(status, json.dumps({"message": message}).encode())

    def posts(self, events: Sequence[Event], *, key: str) -> list[Post]:
        headers = {"Content-Type": "application/json", "User-Agent": "Go-http-client/1.1"}
        return [Post(json.dumps(_event(event, key)).encode(), headers) for event in events]


def signature(key: str, *, timestamp: str, token: str) -> dict[str, str]:
    """Sign as Mailgun does: HMAC-SHA256 of the time and the token, in hexadecimal digits."""
    digest = hmac.new(key.encode(), f"{timestamp}{token}".encode(), hashlib.sha256).hexdigest()
    return {"timestamp": timestamp, "token": token, "signature": digest}


def _event(event: Event, key: str) -> dict[str, Any]:
    data: dict[str, Any] = {
        "event": _EVENTS.get(event.kind, ""),
        **_FAILED.get(event.kind, {}),
        "timestamp": event.happened_at,
        "recipient": event.recipient,
        "message": {"headers": {"message-id": _id(event.message_id).strip("<>")}},
        "user-variables": dict(event.custom_args),
    }
    signed = signature(key, timestamp=str(int(time.time())), token=secrets.token_hex(25)) if key else {}
    return {"signature": signed, "event-data": data}


def _id(message_id: str) -> str:
    return f"<{message_id}@sandbox.mailgun.org>"
