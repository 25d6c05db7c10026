"""The base class of the dialects, by which the local sandbox plays a provider: paths, keys, answers, events.

The sandbox (local/sandbox) keeps the mails for all providers in one form: an object with `from`,
`personalizations` (each with lists `to`, `cc`, `bcc` of `{email, name}`), `reply_to_list` (likewise),
`subject`, `content` (a list of `{type, value}`), `headers` and `custom_args`. A dialect translates a request
into that form. Production processes load no dialect.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formataddr, getaddresses, parseaddr
from typing import Any, NamedTuple

from notifications.providers.explanations import Explanation

Header = Callable[[str], str | None]


class RefusalReason(NamedTuple):
    """One reason to refuse a request."""

    message: str
    field: str | None = None
    help: str | None = None


@dataclass(frozen=True)
class ProviderAnswer:
    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class Event(NamedTuple):
    """An event of a mail. `kind`: processed, delivered, deferred, bounce, blocked, dropped or spamreport."""

    kind: str
    message_id: str
    recipient: str
    happened_at: float  # epoch seconds
    custom_args: Mapping[str, str]
    message_id_header: str


class Post(NamedTuple):
    body: bytes
    headers: Mapping[str, str]


class Dialect(ABC):
    """One provider's protocol. Clients post mails to `path`."""

    name: str
    path: re.Pattern[str]
    content_type = "application/json"
    #: Errors of the provider, each with what it means. Tests compare them with the declaration's `causes`.
    errors: Sequence[tuple[str, Explanation]] = ()

    @abstractmethod
    def payload(self, body: bytes) -> dict[str, Any] | None:
        """Return a body in the sandbox's form, or None if it cannot be read."""

    @abstractmethod
    def key(self, header: Header) -> str | None:
        """Return the API key of a request, or None."""

    @abstractmethod
    def accepted(self, message_id: str) -> ProviderAnswer:
        """Return the answer to an accepted mail."""

    @abstractmethod
    def refusal(self, status: int, reasons: Sequence[RefusalReason]) -> ProviderAnswer:
        """Return the answer to a refused request."""

    def seen_before(self, body: bytes, header: Header) -> ProviderAnswer | None:
        """Return the answer to a request whose idempotency key is known, else None."""
        return None

    def took(self, message_id: str, body: bytes, header: Header) -> None:  # noqa: B027
        """Remember the idempotency key of an accepted mail."""

    def posts(self, events: Sequence[Event], *, key: str) -> list[Post]:
        """Return the webhook posts of these events, signed with `key`. By default, return none.

        The sandbox calls it again for each try: the times and ids of the post are new.
        """
        return []


def as_object(body: bytes) -> dict[str, Any] | None:
    """Parse a body. Return None if it is not a JSON object."""
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return payload if isinstance(payload, dict) else None


def bearer(header: Header) -> str | None:
    """Return the token of `Authorization: Bearer`."""
    scheme, _, key = (header("Authorization") or "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" and key.strip() else None


def address(value: object) -> dict[str, str]:
    """Split "Name <address>"."""
    name, email = parseaddr(str(value or ""))
    return {"email": email} | ({"name": name} if name else {})


def addresses(value: object) -> list[dict[str, str]]:
    """Split a header with several addresses."""
    return [address(formataddr(pair)) for pair in getaddresses([str(value or "")]) if pair[1]]


def parts(*, text: object, html: object) -> list[dict[str, Any]]:
    """Return the content that is not empty, text first."""
    return [
        {"type": kind, "value": value} for kind, value in (("text/plain", text), ("text/html", html)) if value
    ]


def strings(value: object) -> dict[str, str]:
    """Return an object's values as text, or {} if `value` is not an object."""
    return {str(name): str(member) for name, member in value.items()} if isinstance(value, dict) else {}


def metadata(header: object) -> dict[str, str]:
    """Parse the header X-Metadata, which anymail uses for providers without a field for metadata."""
    try:
        return strings(json.loads(str(header)))
    except ValueError:
        return {}
