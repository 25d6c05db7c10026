"""Resend's API as the sandbox plays it, with idempotency keys but without events and limits.

From its API reference ("Send Email", "Errors") and "Idempotency Keys".
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Sequence
from typing import Any

from notifications.providers.dialect import (
    Dialect,
    Header,
    ProviderAnswer,
    RefusalReason,
    address,
    as_object,
    bearer,
    metadata,
    parts,
    strings,
)

_NAMES = {
    400: "validation_error",
    401: "missing_api_key",
    403: "invalid_api_key",
    404: "not_found",
    409: "invalid_idempotent_request",
    422: "missing_required_field",
    429: "rate_limit_exceeded",
    500: "application_error",
}


class ResendDialect(Dialect):
    """`POST /emails`. It remembers idempotency keys until the sandbox exits."""

    name = "resend"
    path = re.compile(r"/emails")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, str]] = {}  # key -> hash of the body, message id

    def payload(self, body: bytes) -> dict[str, Any] | None:
        sent = as_object(body)
        if sent is None:
            return None
        headers = strings(sent.get("headers"))
        recipients = sent.get("to") if isinstance(sent.get("to"), list) else [sent.get("to")]
        return {
            "from": address(sent.get("from")),
            "personalizations": [{"to": [address(recipient) for recipient in recipients or []]}],
            "reply_to_list": [address(recipient) for recipient in sent.get("reply_to") or []],
            "subject": sent.get("subject"),
            "content": parts(text=sent.get("text"), html=sent.get("html")),
            "headers": headers,
            "custom_args": metadata(headers.get("X-Metadata")),
        }

    def key(self, header: Header) -> str | None:
        return bearer(header)

    def accepted(self, message_id: str) -> ProviderAnswer:
        return ProviderAnswer(200, json.dumps({"id": message_id}).encode())

    def refusal(self, status: int, reasons: Sequence[RefusalReason]) -> ProviderAnswer:
        """Name the error. A fault can set the name by a message that is one word with an underscore."""
        name = _NAMES.get(status, "application_error")
        message = "; ".join(reason.message for reason in reasons)
        if " " not in message and "_" in message:
            name = message
        return ProviderAnswer(
            status, json.dumps({"statusCode": status, "name": name, "message": message}).encode()
        )

    def seen_before(self, body: bytes, header: Header) -> ProviderAnswer | None:
        """Return the first answer again, or 409 if the same key comes with other content."""
        with self._lock:
            earlier = self._known.get(header("Idempotency-Key") or "")
        if earlier is None:
            return None
        if earlier[0] != hashlib.sha256(body).hexdigest():
            return self.refusal(
                409, [RefusalReason("Same idempotency key used with a different request payload.")]
            )
        return self.accepted(earlier[1])

    def took(self, message_id: str, body: bytes, header: Header) -> None:
        if key := header("Idempotency-Key"):
            with self._lock:
                self._known[key] = hashlib.sha256(body).hexdigest(), message_id
