"""What replaces erased personal data, and how an address is kept without being readable."""

from __future__ import annotations

import hashlib
import hmac
import re

from django.conf import settings

ERASED = "[erased]"
#: Replaces an address. The domain can never exist (RFC 2606).
ERASED_ADDRESS = "erased@privacy.invalid"

_ADDRESS_LIKE = re.compile(r"""[^\s@"'`<>(),:;=\[\]{}\\]+@[^\s@"'`<>(),:;=\[\]{}\\]+""")

#: `o'hara@…` is one address, and `'ann@…'` is one in quotes.
_WITH_APOSTROPHES = re.compile(_ADDRESS_LIKE.pattern.replace("'", ""))


def address_hash(recipient_email: str) -> str:
    """Hash an address with PRIVACY_KEY (HMAC-SHA256, hex), whatever its case and the spaces around it."""
    key, text = str(settings.PRIVACY_KEY), recipient_email.strip().lower()
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def key_hash_salt() -> str:
    """Return the text that is put before an idempotency key to hash it. It is a secret."""
    return f"{settings.PRIVACY_KEY}:"


def key_hash(key: str) -> str:
    """Hash a caller's idempotency key (`sha256:` and 64 hex digits), because it may be any text.

    `outbox.models.events` does the same in SQL.
    """
    return f"sha256:{hashlib.sha256((key_hash_salt() + key).encode()).hexdigest()}"


def find_address_hashes(text: str) -> set[str]:
    """Return the hash of everything in a text that looks like an address."""
    if "@" not in text:
        return set()
    quoted = (found.strip("'") for found in _WITH_APOSTROPHES.findall(text))
    return {address_hash(found.rstrip(".")) for found in (*_ADDRESS_LIKE.findall(text), *quoted)}
