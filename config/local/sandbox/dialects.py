"""What the providers' protocols differ in: paths, keys, errors, answers. The sandbox speaks all three.

Called by the sandbox's server. Each dialect translates a request into the form of SendGrid's (protocol.py),
in which mails are checked, kept and shown. Resend's and SES' forms are those of their API references
("Send Email", "Errors", "Idempotency Keys"; SES v2 "SendEmail"); their limits are not played.
"""

from __future__ import annotations

import base64
import email
import email.policy
import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from email.message import EmailMessage
from email.utils import getaddresses, parseaddr
from typing import Any

from config.local.sandbox import protocol
from config.local.sandbox.mails import Mail
from config.local.sandbox.protocol import Problem
from config.local.sandbox.response import Response

Header = Callable[[str], str | None]


class SendGrid:
    """`POST /v3/mail/send`."""

    name = "sendgrid"
    path = "/v3/mail/send"

    def payload(self, body: bytes) -> dict[str, Any] | None:
        """This function will translate a body into SendGrid's payload; None if it cannot be read."""
        return protocol.parse(body)

    def key(self, header: Header) -> str | None:
        """This function will give the API key that a request came with, None without one."""
        scheme, _, key = (header("Authorization") or "").partition(" ")
        return key.strip() if scheme.lower() == "bearer" and key.strip() else None

    def accepted(self, mail: Mail) -> Response:
        """This function will make the answer to a mail that was taken."""
        return Response(202, headers={"X-Message-Id": mail.message_id}, content_type="")

    def refusal(self, status: int, *problems: Problem) -> Response:
        """This function will make the answer to what was not taken."""
        return Response(status, protocol.errors_body(*problems))

    def seen_before(self, body: bytes, header: Header) -> Response | None:
        """This function will answer a request whose idempotency key is known; SendGrid has none."""
        return None

    def took(self, mail: Mail, body: bytes, header: Header) -> None:
        """This function will remember an idempotency key."""


class Resend(SendGrid):
    """`POST /emails`, with keys that are remembered until the sandbox ends."""

    name = "resend"
    path = "/emails"
    _names = {
        400: "validation_error",
        401: "missing_api_key",
        403: "invalid_api_key",
        404: "not_found",
        409: "invalid_idempotent_request",
        422: "missing_required_field",
        429: "rate_limit_exceeded",
        500: "application_error",
    }

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[str, str]] = {}  # key -> hash of the body, message id

    def payload(self, body: bytes) -> dict[str, Any] | None:
        """Flat: from, to, subject, text, html, headers; metadata is a header of anymail's."""
        given = protocol.parse(body)
        if given is None:
            return None
        headers = given.get("headers") if isinstance(given.get("headers"), dict) else {}
        recipients = given.get("to") if isinstance(given.get("to"), list) else [given.get("to")]
        return {
            "from": _address(given.get("from")),
            "personalizations": [{"to": [_address(one) for one in recipients or []]}],
            "subject": given.get("subject"),
            "content": [
                {"type": kind, "value": given[name]}
                for kind, name in (("text/plain", "text"), ("text/html", "html"))
                if given.get(name)
            ],
            "headers": {name: str(value) for name, value in (headers or {}).items()},
            "custom_args": _metadata((headers or {}).get("X-Metadata")),
        }

    def accepted(self, mail: Mail) -> Response:
        """200 and the id."""
        return Response(200, json.dumps({"id": mail.message_id}).encode())

    def refusal(self, status: int, *problems: Problem) -> Response:
        """One name and one message."""
        name = self._names.get(status, "application_error")
        message = "; ".join(problem.message for problem in problems)
        if " " not in message and "_" in message:
            name = message  # a fault may name the error that it means
        return Response(status, json.dumps({"statusCode": status, "name": name, "message": message}).encode())

    def seen_before(self, body: bytes, header: Header) -> Response | None:
        """The first answer again, or 409 if the same key comes with another content."""
        with self._lock:
            known = self._known.get(header("Idempotency-Key") or "")
        if known is None:
            return None
        if known[0] != hashlib.sha256(body).hexdigest():
            return self.refusal(409, Problem("Same idempotency key used with a different request payload."))
        return Response(200, json.dumps({"id": known[1]}).encode())

    def took(self, mail: Mail, body: bytes, header: Header) -> None:
        """Remember."""
        if key := header("Idempotency-Key"):
            with self._lock:
                self._known[key] = hashlib.sha256(body).hexdigest(), mail.message_id


class Ses(SendGrid):
    """`POST /v2/email/outbound-emails` with a raw MIME message; any signature by the right access key."""

    name = "ses"
    path = "/v2/email/outbound-emails"
    _names = {
        400: "BadRequestException",
        401: "UnrecognizedClientException",
        403: "AccessDeniedException",
        404: "NotFoundException",
        429: "TooManyRequestsException",
        500: "InternalServiceErrorException",
    }

    def payload(self, body: bytes) -> dict[str, Any] | None:
        """The MIME message says it all; Destination is where it really goes."""
        given = protocol.parse(body)
        try:
            raw = base64.b64decode((given or {})["Content"]["Raw"]["Data"])
        except (KeyError, TypeError, ValueError):
            return None
        message = email.message_from_bytes(raw, policy=email.policy.default)
        to = [address for _, address in getaddresses([str(one) for one in message.get_all("To", [])])]
        parts = [part for part in message.walk() if not part.is_multipart()]
        return {
            "from": _address(str(message["From"])),
            "personalizations": [{"to": [{"email": address} for address in to]}],
            "subject": str(message["Subject"]),
            "content": [
                {"type": part.get_content_type(), "value": part.get_content()}
                for part in parts
                if isinstance(part, EmailMessage)
            ],
            "headers": {"Message-ID": str(message["Message-ID"])},
            "custom_args": _metadata(message["X-Metadata"]),
        }

    def key(self, header: Header) -> str | None:
        """The access key's id, from a version 4 signature that is not checked further."""
        _, _, credential = (header("Authorization") or "").partition("Credential=")
        return credential.partition("/")[0] or None

    def accepted(self, mail: Mail) -> Response:
        """200 and the id."""
        return Response(200, json.dumps({"MessageId": mail.message_id}).encode())

    def refusal(self, status: int, *problems: Problem) -> Response:
        """The error's name is in a header."""
        name = self._names.get(status, "InternalServiceErrorException")
        message = "; ".join(problem.message for problem in problems)
        if message.isalnum():
            name = message  # a fault may name the error that it means
        elif "not verified" in message:
            name = "MessageRejected"
        body = json.dumps({"message": message}).encode()
        return Response(status, body, headers={"x-amzn-ErrorType": name})


def all_of_them() -> Mapping[str, SendGrid]:
    """This function will give a fresh dialect of each kind by its path."""
    return {dialect.path: dialect for dialect in (SendGrid(), Resend(), Ses())}


def _address(value: object) -> dict[str, str]:
    name, address = parseaddr(str(value or ""))
    return {"email": address} | ({"name": name} if name else {})


def _metadata(header: object) -> dict[str, str]:
    try:
        found = json.loads(str(header))
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}
