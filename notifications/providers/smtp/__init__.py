"""SMTP: any mail server. It has no webhook."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

from notifications.providers.registry import Declaration, Protocol, Setting

#: The port of each scheme. django-environ and dj-email-url have the same schemes.
_PORTS = {"smtp": 25, "smtp+tls": 587}


def parse_url(url: str) -> dict[str, Any]:
    """Return Django's settings of a mail server, such as `smtp+tls://user:password@host:587`.

    Raise `ValueError`, whose text leaves out the URL: it may have a password.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("has no valid host and port. Percent-encode the password.") from None
    if parts.scheme not in _PORTS or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError(
            "must be the URL of a mail server: smtp://host:25, or smtp+tls://user:password@host:587."
            " Percent-encode the password."
        )
    if bool(parts.username) != bool(parts.password):
        raise ValueError("must have both a user and a password, or neither.")
    try:
        user, password = (unquote(text or "", errors="strict") for text in (parts.username, parts.password))
    except UnicodeDecodeError:
        raise ValueError("must have its user and password percent-encoded as UTF-8.") from None
    return {
        "EMAIL_HOST": parts.hostname,
        "EMAIL_PORT": port or _PORTS[parts.scheme],
        "EMAIL_HOST_USER": user,
        "EMAIL_HOST_PASSWORD": password,
        "EMAIL_USE_TLS": parts.scheme == "smtp+tls",
    }


DECLARATION = Declaration(
    name="smtp",
    provider="notifications.providers.smtp.backend.SmtpProvider",
    settings=(Setting("EMAIL_URL", "smtp://localhost:25", parse=parse_url),),
    protocol=Protocol.SMTP,
)
