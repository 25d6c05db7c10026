"""Which posts come from the shop: those signed with the webhook's secret.

The signature covers the body alone. A header such as X-WC-Webhook-Topic may be anybody's.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from typing import Literal

from shop_connections.encryption import decrypt
from shop_connections.models import ShopConnection

#: Base64 of 32 bytes.
_SIGNATURE = re.compile(r"[A-Za-z0-9+/]{43}=")
LONGEST_PING = 64  # bytes
_PING = re.compile(rb"webhook_id=\d{1,20}")


def sign(*, body: bytes, secret: str) -> str:
    """Return the value of X-WC-Webhook-Signature."""
    return base64.b64encode(hmac.digest(secret.encode(), body, hashlib.sha256)).decode()


def is_signed(*, body: bytes, headers: Mapping[str, str], secret: str) -> bool:
    """Return whether a post has the signature of its raw body. An empty secret signs nothing."""
    signature = headers.get("X-WC-Webhook-Signature") or ""
    expected = sign(body=body, secret=secret)
    return bool(secret) and hmac.compare_digest(signature.strip().encode(), expected.encode())


def is_authentic(
    connection: ShopConnection, *, body: bytes, headers: Mapping[str, str]
) -> Literal["yes", "no"]:
    is_of_shop = is_signed(body=body, headers=headers, secret=decrypt(connection.secret))
    return "yes" if is_of_shop else "no"


def may_be_signed(*, rest: str = "", headers: Mapping[str, str]) -> bool:
    """Return whether a post with these headers could be signed, or a ping."""
    if _SIGNATURE.fullmatch(headers.get("X-WC-Webhook-Signature") or ""):
        return True
    length = headers.get("Content-Length") or ""
    return _is_form(headers.get("Content-Type") or "") and length.isdecimal() and int(length) <= LONGEST_PING


def is_ping(*, body: bytes, content_type: str) -> bool:
    """Return whether a post is the unsigned one by which WooCommerce tries a new webhook's address."""
    return _is_form(content_type) and _PING.fullmatch(body) is not None


def _is_form(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == "application/x-www-form-urlencoded"
