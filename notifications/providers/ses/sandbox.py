"""Amazon SES' v2 "SendEmail" as the sandbox plays it, without events.

It takes a raw MIME message, and any signature with the right access key's id.
"""

from __future__ import annotations

import base64
import email
import email.policy
import json
import re
from collections.abc import Sequence
from email.message import EmailMessage
from email.utils import getaddresses
from typing import Any

from notifications.providers.dialect import (
    Dialect,
    Header,
    ProviderAnswer,
    RefusalReason,
    address,
    addresses,
    as_object,
    metadata,
)

_NAMES = {
    400: "BadRequestException",
    401: "UnrecognizedClientException",
    403: "AccessDeniedException",
    404: "NotFoundException",
    429: "TooManyRequestsException",
    500: "InternalServiceErrorException",
}
_KEPT_HEADERS = ("Message-ID", "Auto-Submitted")


class SesDialect(Dialect):
    name = "ses"
    path = re.compile(r"/v2/email/outbound-emails")

    def payload(self, body: bytes) -> dict[str, Any] | None:
        try:
            raw = base64.b64decode((as_object(body) or {})["Content"]["Raw"]["Data"])
        except (KeyError, TypeError, ValueError):
            return None
        message = email.message_from_bytes(raw, policy=email.policy.default)
        to = [recipient for _, recipient in getaddresses([str(line) for line in message.get_all("To", [])])]
        leaves = [part for part in message.walk() if not part.is_multipart()]
        return {
            "from": address(message["From"]),
            "personalizations": [{"to": [{"email": recipient} for recipient in to]}],
            "reply_to_list": addresses(message["Reply-To"]),
            "subject": str(message["Subject"]),
            "content": [
                {"type": part.get_content_type(), "value": part.get_content()}
                for part in leaves
                if isinstance(part, EmailMessage)
            ],
            "headers": {name: str(message[name]) for name in _KEPT_HEADERS if name in message},
            "custom_args": metadata(message["X-Metadata"]),
        }

    def key(self, header: Header) -> str | None:
        """Return the access key's id from a version 4 signature. Do not check the signature."""
        _, _, credential = (header("Authorization") or "").partition("Credential=")
        return credential.partition("/")[0] or None

    def accepted(self, message_id: str) -> ProviderAnswer:
        return ProviderAnswer(200, json.dumps({"MessageId": message_id}).encode())

    def refusal(self, status: int, reasons: Sequence[RefusalReason]) -> ProviderAnswer:
        """Name the error in a header. A fault can set the name by a message of one word."""
        name = _NAMES.get(status, "InternalServiceErrorException")
        message = "; ".join(reason.message for reason in reasons)
        if message.isalnum():
            name = message
        elif "not verified" in message:
            name = "MessageRejected"
        return ProviderAnswer(
            status, json.dumps({"message": message}).encode(), headers={"x-amzn-ErrorType": name}
        )
