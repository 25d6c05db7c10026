"""Encrypt the secrets of connections with CONNECTION_KEY. Its first key encrypts, and every key decrypts."""

from __future__ import annotations

import base64
import functools
import hashlib
import secrets
from collections.abc import Sequence

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings


class KeyMissing(Exception):
    """CONNECTION_KEY is not set."""


class Unreadable(Exception):
    """No key of CONNECTION_KEY decrypts a secret."""


#: The bytes of a secret that is made here, and its characters.
_SECRET_BYTES, SECRET_LENGTH = 32, 43


def new_secret() -> str:
    return secrets.token_urlsafe(_SECRET_BYTES)


def encrypt(secret: str) -> str:
    """Return a secret encrypted. Raise `KeyMissing`."""
    return _keys(tuple(settings.CONNECTION_KEY)).encrypt(secret.encode()).decode()


def decrypt(stored: str) -> str:
    """Return a stored secret. Raise `Unreadable`."""
    try:
        return _keys(tuple(settings.CONNECTION_KEY)).decrypt(stored).decode()
    except (InvalidToken, KeyMissing) as error:
        raise Unreadable("No key of CONNECTION_KEY decrypts the secret.") from error


@functools.lru_cache(maxsize=1)
def _keys(keys: Sequence[str]) -> MultiFernet:
    if not keys:
        raise KeyMissing("Set CONNECTION_KEY: it encrypts the secrets of connections.")
    # Each key is random, so one round makes 256 bits of it.
    return MultiFernet(
        [Fernet(base64.urlsafe_b64encode(hashlib.sha256(key.encode()).digest())) for key in keys]
    )
