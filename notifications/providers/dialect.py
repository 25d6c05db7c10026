"""How the local sandbox plays a provider: its paths, keys, answers and events.

The sandbox (local/sandbox) keeps mails in one form, whoever they were for: an object with `from`,
`personalizations` (each with lists `to`, `cc`, `bcc` of `{email, name}`), `subject`, `content` (a list of
`{type, value}`), `headers` and `custom_args`. A dialect translates a request into that form. No process of
the shop itself loads one.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parseaddr
from typing import Any, NamedTuple

Header = Callable[[str], str | None]


class Problem(NamedTuple):
    """One reason why a request is refused."""

    message: str
    field: str | None = None
    help: str | None = None


@dataclass(frozen=True)
class ProviderAnswer:
    """Status, body and headers of an answer to a request."""

    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)


class Event(NamedTuple):
    """What became of a mail: processed, delivered, deferred, bounce, blocked, dropped or spamreport."""

    kind: str
    message_id: str
    recipient: str
    at: float  # epoch seconds
    custom_args: Mapping[str, str]
    message_id_header: str


class Post(NamedTuple):
    """The body and the headers of a webhook's post."""

    body: bytes
    headers: Mapping[str, str]


class Dialect(ABC):
    """One provider's protocol. `path` is where mails are posted to."""

    name: str
    path: re.Pattern[str]
    content_type = "application/json"

    @abstractmethod
    def payload(self, body: bytes) -> dict[str, Any] | None:
        """Translate a body; None if it cannot be read."""

    @abstractmethod
    def key(self, header: Header) -> str | None:
        """Return the API key of a request, None without one."""

    @abstractmethod
    def accepted(self, message_id: str) -> ProviderAnswer:
        """Make the answer to a mail that was taken."""

    @abstractmethod
    def refusal(self, status: int, problems: Sequence[Problem]) -> ProviderAnswer:
        """Make the answer to a request that was refused."""

    def seen_before(self, body: bytes, header: Header) -> ProviderAnswer | None:
        """Return the answer to a request whose idempotency key is known, where the provider has such keys."""
        return None

    def took(self, message_id: str, body: bytes, header: Header) -> None:  # noqa: B027
        """Remember the idempotency key of a mail that was taken."""

    def posts(self, events: Sequence[Event], *, key: str) -> list[Post]:
        """Return the webhook posts that tell of these events, signed with `key`; none are played by default.

        Called again for each try, so that times and ids of the post are new.
        """
        return []


def as_object(body: bytes) -> dict[str, Any] | None:
    """Read a body; None when it is no JSON object."""
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


def parts(*, text: object, html: object) -> list[dict[str, Any]]:
    """Return the content that is there, text first."""
    return [
        {"type": kind, "value": value} for kind, value in (("text/plain", text), ("text/html", html)) if value
    ]


def strings(value: object) -> dict[str, str]:
    """Return an object's values as text; nothing where `value` is no object."""
    return {str(name): str(one) for name, one in value.items()} if isinstance(value, dict) else {}


def metadata(header: object) -> dict[str, str]:
    """Read the header in which anymail puts the metadata where a provider has no place for them."""
    try:
        return strings(json.loads(str(header)))
    except ValueError:
        return {}
