"""SendGrid's v3 Mail Send and Event Webhook, as the sandbox plays them.

Answers and errors are from SendGrid's API reference ("Errors", "Mail Send errors"). Field names, headers and
signed content of events are from its "Event Webhook Reference" and "Event Webhook Security Features".
"""

from __future__ import annotations

import base64
import json
import re
import secrets
import time
from collections.abc import Sequence
from typing import Any

from notifications.providers.dialect import (
    Dialect,
    Event,
    Header,
    Post,
    ProviderAnswer,
    RefusalReason,
    as_object,
    bearer,
)

_MORE: dict[str, dict[str, str]] = {
    "delivered": {"response": "250 OK"},
    "bounce": {"type": "bounce", "status": "5.1.1", "reason": "550 5.1.1 no such mailbox"},
    "blocked": {"type": "blocked", "status": "4.7.1", "reason": "421 4.7.1 try again later"},
    "dropped": {"status": "5.0.0", "reason": "Bounced Address"},
    "deferred": {"attempt": "1", "response": "450 4.2.0 mailbox busy"},
}


class SendGridDialect(Dialect):
    """`POST /v3/mail/send`. The sandbox keeps the mails for all providers in this form."""

    name = "sendgrid"
    path = re.compile(r"/v3/mail/send")

    def payload(self, body: bytes) -> dict[str, Any] | None:
        return as_object(body)

    def key(self, header: Header) -> str | None:
        return bearer(header)

    def accepted(self, message_id: str) -> ProviderAnswer:
        return ProviderAnswer(202, headers={"X-Message-Id": message_id}, content_type="")

    def refusal(self, status: int, reasons: Sequence[RefusalReason]) -> ProviderAnswer:
        return ProviderAnswer(
            status, json.dumps({"errors": [reason._asdict() for reason in reasons]}).encode()
        )

    def posts(self, events: Sequence[Event], *, key: str) -> list[Post]:
        """Return one batch. Each try has new event ids, as SendGrid's tries do."""
        body = json.dumps([_event(event) for event in events]).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "SendGrid Event API"}
        if key:
            timestamp = str(int(time.time()))
            headers["X-Twilio-Email-Event-Webhook-Timestamp"] = timestamp
            headers["X-Twilio-Email-Event-Webhook-Signature"] = sign(timestamp.encode() + body, key=key)
        return [Post(body, headers)]


def _event(event: Event) -> dict[str, Any]:
    return {
        **event.custom_args,
        "email": event.recipient,
        "event": "bounce" if event.kind == "blocked" else event.kind,
        "timestamp": int(event.happened_at),
        "sg_message_id": f"{event.message_id}.sandbox-0.0",
        **({"smtp-id": event.message_id_header} if event.kind != "spamreport" else {}),
        **_MORE.get(event.kind, {}),
        "sg_event_id": secrets.token_urlsafe(16),
    }


def sign(content: bytes, *, key: str) -> str:
    """Sign as SendGrid does: ECDSA over SHA-256, in base64. `key` is a PEM."""
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = serialization.load_pem_private_key(key.encode(), password=None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ValueError("the key must be an elliptic curve key")
    return base64.b64encode(private.sign(content, ec.ECDSA(hashes.SHA256()))).decode()
