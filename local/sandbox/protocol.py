"""Read and check the payloads of mails.

notifications/providers/dialect.py describes a payload. The limits and rules are those of a typical provider
(documented: the number of recipients, no address twice). They may differ from those of a real provider.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from local.sandbox.mails import Mail
from notifications.providers.dialect import RefusalReason

MAX_BODY = 30 * 1024 * 1024
MAX_RECIPIENTS = 1000
MAX_CUSTOM_ARGS = 10_000  # bytes
MESSAGES_OF_STATUS = {
    401: "The provided authorization grant is invalid, expired, or revoked",
    403: "access forbidden",
    413: "payload too large",
    429: "too many requests",
}
_ADDRESS = re.compile(r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~.-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.)+[A-Za-z0-9-]{2,63}")
_RESERVED_HEADERS = frozenset(
    {"x-sg-id", "x-sg-eid", "received", "dkim-signature", "content-transfer-encoding", "content-type"}
    | {"to", "from", "subject", "reply-to", "cc", "bcc"}
)
_KEPT_REQUEST_HEADERS = ("User-Agent", "Content-Type", "Traceparent", "X-Correlation-ID", "Idempotency-Key")


def recipients_of(payload: Mapping[str, Any]) -> tuple[str, ...]:
    """Return all addresses in to, cc and bcc, even if the payload is not valid."""
    return tuple(
        str(address["email"]) for _, address in _addresses(payload) if _is_text(_get(address, "email"))
    )


def sender_of(payload: Mapping[str, Any]) -> str:
    """Return the address of the sender, or "" if the payload is not valid."""
    return str(_get(payload.get("from"), "email") or "")


def custom_args_of(payload: Mapping[str, Any]) -> dict[str, str]:
    """Merge the payload's custom arguments. Those of a personalization win."""
    merged: dict[str, str] = {}
    for part in (payload, *_list(payload.get("personalizations"))):
        arguments = _get(part, "custom_args")
        if isinstance(arguments, dict):
            merged.update((str(name), str(value)) for name, value in arguments.items())
    return merged


def accept(
    *, payload: Mapping[str, Any], body: bytes, header: Callable[[str], str | None], provider: str
) -> Mail:
    """Return the mail of a payload that `check` accepted, with a new message id.

    `header` returns a header of the request by its name, in any case.
    """
    subjects = (_get(part, "subject") for part in _list(payload.get("personalizations")))
    return Mail(
        message_id=secrets.token_urlsafe(16),
        received_epoch=time.time(),
        recipients=recipients_of(payload),
        subject=next((str(own) for own in subjects if own), str(payload.get("subject") or "")),
        custom_args=custom_args_of(payload),
        request_headers={
            name: value for name in _KEPT_REQUEST_HEADERS if (value := header(name)) is not None
        },
        raw=body,
        provider=provider,
    )


def check(payload: Mapping[str, Any]) -> list[RefusalReason]:
    """Return the reasons to refuse a payload, or an empty list."""
    return [
        *_check_recipients(payload),
        *_check_sender(payload),
        *_check_subject(payload),
        *_check_content(payload),
        *_check_extras(payload),
    ]


def _check_recipients(payload: Mapping[str, Any]) -> Iterator[RefusalReason]:
    personalizations = payload.get("personalizations")
    if not isinstance(personalizations, list) or not personalizations:
        yield RefusalReason("At least one personalization is required.", "personalizations")
        return
    for index, part in enumerate(personalizations):
        if not _list(_get(part, "to")):
            yield RefusalReason("At least one recipient is required.", f"personalizations.{index}.to")
    seen: set[tuple[str, str]] = set()
    count = 0
    for field, address in _addresses(payload):
        count += 1
        email = _get(address, "email")
        if not _is_address(email):
            yield RefusalReason("Does not contain a valid address.", f"{field}.email")
        elif (key := (field.split(".")[1], email.casefold())) in seen:
            yield RefusalReason("Each address may be in to, cc and bcc only once.", field)
        else:
            seen.add(key)
    if count > MAX_RECIPIENTS:
        yield RefusalReason(f"More than {MAX_RECIPIENTS} recipients.", "personalizations")


def _check_sender(payload: Mapping[str, Any]) -> Iterator[RefusalReason]:
    if not _is_address(_get(payload.get("from"), "email")):
        yield RefusalReason("A sender with a valid address is required.", "from.email")


def _check_subject(payload: Mapping[str, Any]) -> Iterator[RefusalReason]:
    if _is_text(payload.get("subject")):
        return
    personalizations = _list(payload.get("personalizations"))
    if not personalizations or not all(_is_text(_get(part, "subject")) for part in personalizations):
        yield RefusalReason("A subject of at least one character is required.", "subject")


def _check_content(payload: Mapping[str, Any]) -> Iterator[RefusalReason]:
    content = _list(payload.get("content"))
    if not content:
        yield RefusalReason("At least one content part is required.", "content")
    for index, part in enumerate(content):
        for name in ("type", "value"):
            if not _is_text(_get(part, name)):
                yield RefusalReason("Must be text of at least one character.", f"content.{index}.{name}")
    types = [_get(part, "type") for part in content]
    if "text/plain" in types and types[0] != "text/plain":
        yield RefusalReason("The text/plain part must come first.", "content")


def _check_extras(payload: Mapping[str, Any]) -> Iterator[RefusalReason]:
    arguments = custom_args_of(payload)
    if len(json.dumps(arguments)) > MAX_CUSTOM_ARGS:
        yield RefusalReason(f"More than {MAX_CUSTOM_ARGS} bytes of custom arguments.", "custom_args")
    parts = [("", payload)]
    parts += [
        (f"personalizations.{index}.", part)
        for index, part in enumerate(_list(payload.get("personalizations")))
    ]
    for prefix, part in parts:
        for field in ("custom_args", "headers"):
            values = _get(part, field)
            if values is None:
                continue
            if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
                yield RefusalReason("Must be an object of strings.", prefix + field)
            elif field == "headers":
                for name in values:
                    if name.lower() in _RESERVED_HEADERS or not name.isascii():
                        yield RefusalReason("This header cannot be set.", f"{prefix}headers.{name}")


def _addresses(payload: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each recipient after the path of its field."""
    for index, part in enumerate(_list(payload.get("personalizations"))):
        for kind in ("to", "cc", "bcc"):
            for number, address in enumerate(_list(_get(part, kind))):
                yield f"personalizations.{index}.{kind}.{number}", address


def _is_address(value: object) -> bool:
    return isinstance(value, str) and _ADDRESS.fullmatch(value) is not None and ".." not in value


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _get(part: object, name: str) -> Any:
    return part.get(name) if isinstance(part, dict) else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
