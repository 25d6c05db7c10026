"""What stands where personal data was erased, and how an address is kept without being readable."""

from __future__ import annotations

import hashlib
import hmac

from django.conf import settings

ERASED = "[erased]"


#: Stands where an address was. The domain can never exist (RFC 2606).
ERASED_ADDRESS = "erased@privacy.invalid"


def address_hash(address: str) -> str:
    """This function will hash an address with PRIVACY_KEY (HMAC-SHA256, hex); case and spaces don't count."""
    key, text = str(settings.PRIVACY_KEY), address.strip().lower()
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def key_hash_salt() -> str:
    """Return the text that is put before an idempotency key to hash it. It is a secret."""
    return f"{settings.PRIVACY_KEY}:"


def key_hash(key: str) -> str:
    """Hash a caller's idempotency key (`sha256:` and 64 hex digits), because it may be any text.

    `outbox.models.events` does the same in SQL.
    """
    return f"sha256:{hashlib.sha256((key_hash_salt() + key).encode()).hexdigest()}"
