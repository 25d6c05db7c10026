"""Postmark's Email API and webhooks, as the sandbox plays them.

From "Email API: Send a single email", "API overview: API error codes", and the pages of its bounce, delivery
and spam complaint webhooks. Postmark posts no events for `processed` and `deferred`.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from notifications.providers.dialect import (
    Dialect,
    Event,
    Header,
    Post,
    ProviderAnswer,
    RefusalReason,
    address,
    addresses,
    as_object,
    parts,
    strings,
)

_STATUSES = {10: 401, 429: 429}
_CODES = {400: 300, 401: 10, 403: 10, 429: 429}
_BOUNCES = {
    "bounce": {"Type": "HardBounce", "TypeCode": 1, "Inactive": True},
    "blocked": {"Type": "Transient", "TypeCode": 2, "Inactive": False},
    "dropped": {"Type": "SoftBounce", "TypeCode": 4096, "Inactive": False},
}


class PostmarkDialect(Dialect):
    """`POST /email`."""

    name = "postmark"
    path = re.compile(r"/email")

    def payload(self, body: bytes) -> dict[str, Any] | None:
        sent = as_object(body)
        if sent is None:
            return None
        headers = sent.get("Headers")
        return {
            "from": address(sent.get("From")),
            "personalizations": [{"to": addresses(sent.get("To"))}],
            "reply_to_list": addresses(sent.get("ReplyTo")),
            "subject": sent.get("Subject"),
            "content": parts(text=sent.get("TextBody"), html=sent.get("HtmlBody")),
            "headers": {
                str(header.get("Name")): str(header.get("Value"))
                for header in (headers if isinstance(headers, list) else [])
                if isinstance(header, dict)
            },
            "custom_args": strings(sent.get("Metadata")),
        }

    def key(self, header: Header) -> str | None:
        return header("X-Postmark-Server-Token")

    def accepted(self, message_id: str) -> ProviderAnswer:
        return ProviderAnswer(
            200, json.dumps({"MessageID": message_id, "ErrorCode": 0, "Message": "OK"}).encode()
        )

    def refusal(self, status: int, reasons: Sequence[RefusalReason]) -> ProviderAnswer:
        """Name the error by its code. A fault can set it by a message that begins with a number."""
        message = "; ".join(reason.message for reason in reasons)
        code, _, rest = message.partition(" ")
        if code.isdigit():
            body = {"ErrorCode": int(code), "Message": rest or "no reason given"}
            return ProviderAnswer(_STATUSES.get(int(code), 422), json.dumps(body).encode())
        body = {"ErrorCode": _CODES.get(status, 0), "Message": message}
        return ProviderAnswer(422 if status == 400 else status, json.dumps(body).encode())

    def posts(self, events: Sequence[Event], *, key: str) -> list[Post]:
        headers = {"Content-Type": "application/json", "User-Agent": "Postmark"}
        if key:
            headers["Authorization"] = "Basic " + base64.b64encode(key.encode()).decode()
        told = (_event(event) for event in events)
        return [Post(json.dumps(event).encode(), headers) for event in told if event]


def _event(event: Event) -> dict[str, Any] | None:
    at = datetime.fromtimestamp(event.happened_at, UTC).isoformat()
    common = {"MessageID": event.message_id, "Metadata": dict(event.custom_args)}
    if event.kind == "delivered":
        return common | {"RecordType": "Delivery", "Recipient": event.recipient, "DeliveredAt": at}
    if event.kind == "spamreport":
        more = {"RecordType": "SpamComplaint", "Type": "SpamComplaint", "Inactive": True}
        return common | more | {"Email": event.recipient, "BouncedAt": at}
    if event.kind in _BOUNCES:
        return (
            common
            | _BOUNCES[event.kind]
            | {
                "RecordType": "Bounce",
                "Email": event.recipient,
                "BouncedAt": at,
            }
        )
    return None
